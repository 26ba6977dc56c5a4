/* Operations on files, as a transcript: one line for each, with what came of it.
 *
 * `ops SECTION DIRECTORY` works in an empty directory. Two transcripts of one section, from two
 * directories, are the same if the directories behave alike; lines that begin with `~` tell of what
 * need not be alike. */
#include "ops/common.h"

#include "ops/attributes.h"
#include "ops/data.h"
#include "ops/directories.h"
#include "ops/names.h"
#include "ops/setid.h"
#include "ops/users.h"

int main(int argc, char **argv) {
    struct {
        const char *name;
        void (*run)(void);
    } sections[] = {{"renames", renames}, {"links", links},     {"xattrs", xattrs},
                    {"times", times},     {"space", space},     {"handles", handles},
                    {"users", users},     {"directories", directories},
                    {"setid", setid}};
    must(argc == 3 && chdir(argv[2]) == 0, "usage: ops SECTION DIRECTORY");
    umask(022);
    for (unsigned i = 0; i < sizeof sections / sizeof *sections; i++)
        if (!strcmp(argv[1], sections[i].name)) {
            sections[i].run();
            return 0;
        }
    puts("no such section");
    return 1;
}

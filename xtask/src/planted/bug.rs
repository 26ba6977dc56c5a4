//! The description of a planted bug, and the table that documents all of them.

use crate::setup::Need;
use crate::tiers::Tier;

/// A bug that can be planted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bug {
    /// As in `planted!(name)`.
    pub(crate) name: &'static str,
    /// The crate's folder.
    pub(crate) room: &'static str,
    /// The wrong thing that the code does.
    pub(crate) does: &'static str,
    pub(crate) tier: Tier,
    pub(crate) tests: &'static [&'static str],
    /// Without these the tests cannot find it.
    pub(crate) needs: &'static [Need],
}

pub(super) const fn bug(
    room: &'static str,
    name: &'static str,
    does: &'static str,
    tier: Tier,
    tests: &'static [&'static str],
) -> Bug {
    Bug {
        name,
        room,
        does,
        tier,
        tests,
        needs: &[],
    }
}

impl Bug {
    pub(super) const fn needs(self, needs: &'static [Need]) -> Bug {
        Bug { needs, ..self }
    }
}

/// The table of docs/reliability.md.
pub(crate) fn table() -> String {
    let mut table =
        String::from("| bug | crate | what it does | tier | found by |\n|---|---|---|---|---|\n");
    for bug in super::BUGS {
        let tests: Vec<String> = bug
            .tests
            .iter()
            .map(|test| format!("`{}`", last(test)))
            .collect();
        table.push_str(&format!(
            "| `{}` | {} | {} | {} | {} |\n",
            bug.name,
            bug.room,
            bug.does,
            bug.tier.name(),
            tests.join(", ")
        ));
    }
    table
}

/// The function of a test.
pub(crate) fn last(test: &str) -> &str {
    test.rsplit("::").next().unwrap_or(test)
}

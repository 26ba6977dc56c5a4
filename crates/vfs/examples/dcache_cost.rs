//! What a look-up in the dentry cache costs: `cargo run --release -p foliocache-vfs --example dcache_cost`.

#[cfg(any(loom, shuttle))]
fn main() {}

#[cfg(not(any(loom, shuttle)))]
fn main() {
    cost::main();
}

#[cfg(not(any(loom, shuttle)))]
mod cost {
    use foliocache_sync::atomic::{AtomicBool, Ordering};
    use foliocache_sync::time::Instant;
    use foliocache_sync::{Arc, rcu, thread};
    use foliocache_vfs::Unbounded;
    use foliocache_vfs::dcache::{
        AliasSlot, Dentry, DentryCache, DentryInode, DentryRef, Layout, Name, Packed, Split,
    };
    use std::hint::black_box;
    use std::marker::PhantomData;

    struct Node<L: Layout> {
        dir: bool,
        alias: AliasSlot<Node<L>>,
        _layout: PhantomData<L>,
    }

    impl<L: Layout> DentryInode for Node<L> {
        type Layout = L;

        fn is_dir(&self) -> bool {
            self.dir
        }

        fn alias(&self) -> &AliasSlot<Self> {
            &self.alias
        }
    }

    fn node<L: Layout>(dir: bool) -> Arc<Node<L>> {
        Arc::new(Node {
            dir,
            alias: AliasSlot::new(),
            _layout: PhantomData,
        })
    }

    /// Six look-ups as a walk under RCU makes them.
    fn walk<L: Layout>(
        cache: &DentryCache<Node<L>>,
        root: &DentryRef<Node<L>>,
        path: &[&[u8]],
    ) -> Option<bool> {
        let rcu = rcu::read_lock();
        let mut dir: &Dentry<Node<L>> = root;
        let mut seq = dir.read_begin();
        let mut is_dir = true;
        for name in path {
            let (child, child_seq) = cache.lookup_rcu(dir, &Name::new(name), &rcu)?;
            is_dir = child.inode_rcu(&rcu)?.is_dir();
            if child.read_retry(child_seq) || dir.read_retry(seq) {
                return None;
            }
            (dir, seq) = (child, child_seq);
        }
        Some(is_dir)
    }

    /// Nanoseconds for each of `n` calls, the least of nine rounds.
    fn time(n: u32, mut call: impl FnMut()) -> f64 {
        let round = |_| {
            let start = Instant::now();
            for _ in 0..n {
                call();
            }
            start.elapsed().as_nanos() as f64 / f64::from(n)
        };
        (0..9).map(round).fold(f64::INFINITY, f64::min)
    }

    fn measure<L: Layout>(layout: &str) {
        let cache = DentryCache::<Node<L>>::new(1 << 16, Arc::new(Unbounded));
        let root = cache.make_root(node(true));
        for i in 0..50_000 {
            let name = format!("f{i}");
            let _ = cache.add(&root, &Name::from(name.as_str()), Some(node(false)));
        }
        let path: [&[u8]; 6] = [
            b"usr",
            b"share",
            b"doc",
            b"packages",
            b"library-1.2.3",
            b"readme.txt",
        ];
        let mut dir = root.clone();
        for (i, name) in path.iter().enumerate() {
            let Ok(next) = cache.add(&dir, &Name::new(name), Some(node(i < 5))) else {
                return;
            };
            dir = next;
        }
        let readme = dir.parent();
        println!("{layout}");
        let one = time(1_000_000, || {
            black_box(walk(&cache, &root, black_box(&path[..1])));
        });
        let six = time(1_000_000, || {
            black_box(walk(&cache, &root, black_box(&path)));
        });
        println!("  walk of one name, under RCU    {one:6.1} ns");
        println!(
            "  walk of six names, under RCU   {six:6.1} ns, {:.1} a name",
            six / 6.0
        );
        if let Some(parent) = &readme {
            let name = Name::new(path[5]);
            let look = time(1_000_000, || {
                let rcu = rcu::read_lock();
                black_box(cache.lookup_rcu(parent, black_box(&name), &rcu));
            });
            let counted = time(1_000_000, || {
                black_box(cache.lookup(parent, black_box(&name)));
            });
            println!("  look-up of a hashed name       {look:6.1} ns");
            println!("  look-up with a reference       {counted:6.1} ns, and dropping it");
        }
        let mut i = 0;
        let add = time(20_000, || {
            i += 1;
            let name = format!("new{i}");
            black_box(cache.add(&root, &Name::from(name.as_str()), None)).ok();
        });
        println!("  adding a negative name         {add:6.1} ns");
        let mut evicted = 0;
        let start = Instant::now();
        while evicted < 100_000 {
            evicted += cache.shrink(1000);
        }
        let each = start.elapsed().as_nanos() as f64 / evicted as f64;
        println!("  evicting one                   {each:6.1} ns");
        // Others take references of the name that is looked up.
        let stop = AtomicBool::new(false);
        let contended = thread::scope(|scope| {
            let (stop, hot) = (&stop, &dir);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    black_box(hot.clone());
                }
            });
            let six = time(1_000_000, || {
                black_box(walk(&cache, &root, black_box(&path)));
            });
            stop.store(true, Ordering::Relaxed);
            six
        });
        println!(
            "  the walk of six while another thread takes references of the last: {contended:.1} ns"
        );
    }

    pub(super) fn main() {
        measure::<Split>("count on a line of its own");
        measure::<Packed>("count among the look-up fields");
    }
}

//! Unit tests of fault plans.

use foliocache_sync::thread;
use foliocache_sync::time::{Duration, Instant, sleep};
use foliocache_sys::Errno;

use super::{Effect, Faults, OpKind, OpSet, Outcome, Rule, When};

fn write(faults: &Faults, pos: u64) -> Outcome {
    faults.begin(OpKind::Write, pos..pos + 4096, 4096).1
}

#[test]
fn counting_rules() {
    let faults = Faults::new(0);
    let fail = |when| Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)).when(when);
    let struck = |when, times| {
        let mut rule = fail(when);
        rule.times = times;
        let id = faults.add(rule);
        let hits: Vec<bool> = (0..6)
            .map(|_| write(&faults, 0) != Outcome::Works)
            .collect();
        let fired = faults.remove(id).expect("the rule is there");
        assert_eq!(fired, hits.iter().filter(|&&hit| hit).count() as u64);
        hits.iter()
            .map(|&hit| if hit { 'x' } else { '.' })
            .collect::<String>()
    };
    assert_eq!(struck(When::Always, None), "xxxxxx");
    assert_eq!(struck(When::Always, Some(2)), "xx....");
    assert_eq!(struck(When::Nth(3), None), "..x...");
    assert_eq!(struck(When::First(2), None), "xx....");
    assert_eq!(struck(When::After(4), None), "....xx");
    assert_eq!(struck(When::Every(2), None), ".x.x.x");
    assert_eq!(struck(When::Chance { part: 0, whole: 9 }, None), "......");
}

#[test]
fn ranges_and_kinds() {
    let faults = Faults::new(0);
    faults.add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::ENOSPC)).range(8192..12288));
    assert_eq!(write(&faults, 4096), Outcome::Works);
    assert_eq!(write(&faults, 8192), Outcome::Fails(Errno::ENOSPC));
    assert_eq!(write(&faults, 12288), Outcome::Works);
    assert_eq!(faults.begin(OpKind::Read, 8192..9000, 10).1, Outcome::Works);
    faults.add(Rule::new(OpSet::FLUSH, Effect::Fail(Errno::EIO)).range(0..1));
    assert_eq!(
        faults.begin(OpKind::Flush, 0..0, 0).1,
        Outcome::Fails(Errno::EIO)
    );
}

#[test]
fn the_first_decisive_rule_wins() {
    let faults = Faults::new(0);
    faults.add(Rule::new(
        OpSet::ALL,
        Effect::Delay(Duration::from_millis(1)),
    ));
    faults.add(Rule::new(OpSet::WRITE, Effect::ShortTo(100)));
    faults.add(Rule::new(OpSet::ALL, Effect::Fail(Errno::EIO)));
    assert_eq!(write(&faults, 0), Outcome::Short(100));
    assert_eq!(
        faults.begin(OpKind::Read, 0..10, 10).1,
        Outcome::Fails(Errno::EIO)
    );
}

#[test]
fn one_seed_gives_one_plan() {
    let draw = |seed| {
        let faults = Faults::new(seed);
        let chance = When::Chance { part: 1, whole: 3 };
        faults.add(Rule::new(OpSet::WRITE, Effect::Fail(Errno::EIO)).when(chance));
        faults.add(Rule::new(OpSet::WRITE, Effect::Short).when(chance));
        (0..64).map(|_| write(&faults, 0)).collect::<Vec<_>>()
    };
    assert_eq!(draw(3), draw(3));
    assert_ne!(draw(3), draw(4));
}

#[test]
fn hung_operations_wait_for_their_release() {
    let faults = Faults::new(0);
    faults.add(Rule::new(OpSet::WRITE, Effect::Hang));
    for outcome in [Ok(()), Err(Errno::EIO)] {
        let waiting = faults.clone();
        let thread = thread::spawn(move || write(&waiting, 0));
        assert!(faults.wait_hung(1, Duration::from_secs(10)));
        faults.release(outcome);
        let expected = outcome.map_or_else(Outcome::Fails, |()| Outcome::Works);
        assert_eq!(thread.join().expect("no panic"), expected);
        assert_eq!(faults.hung(), 0);
    }
    faults.heal();
    assert_eq!(write(&faults, 0), Outcome::Works);
}

#[test]
fn a_release_reaches_operations_that_would_hang_after_their_delay() {
    let faults = Faults::new(0);
    faults.add(Rule::new(
        OpSet::WRITE,
        Effect::Delay(Duration::from_millis(50)),
    ));
    for _ in 0..2 {
        faults.add(Rule::new(OpSet::WRITE, Effect::Hang));
    }
    let waiting = faults.clone();
    let thread = thread::spawn(move || write(&waiting, 0));
    assert!(faults.wait_begun(OpSet::WRITE, 1, Duration::from_secs(10)));
    faults.heal();
    let until = Instant::now() + Duration::from_secs(10);
    while !thread.is_finished() {
        assert!(Instant::now() < until, "it hangs in a store that is well");
        sleep(Duration::from_millis(1));
    }
    assert_eq!(thread.join().expect("no panic"), Outcome::Works);
}

#[test]
fn waiting_gives_up() {
    let faults = Faults::new(0);
    assert!(!faults.wait_hung(1, Duration::from_millis(5)));
    write(&faults, 0);
    assert!(faults.wait_begun(OpSet::WRITE, 1, Duration::ZERO));
    // No further operation comes: the delay in operations ends by its time.
    let effect = Effect::DelayOps {
        ops: 5,
        at_most: Duration::from_millis(5),
    };
    faults.add(Rule::new(OpSet::WRITE, effect));
    assert_eq!(write(&faults, 0), Outcome::Works);
}

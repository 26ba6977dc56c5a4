//! A list from whose middle entries are taken in a bounded number of steps: [`Ring`].
//!
//! # Model
//!
//! Entries lie in slots, each of which knows the next and the previous one. Slot 0 has no entry; it closes the
//! ring. Who put an entry there remembers the number of its slot. Free slots are linked through `next`.
//!
//! # Invariants
//!
//! 1. A number is that of one entry from `push_back` to `remove`.
//! 2. There are at most as many slots as there were entries at once since the ring was last empty, and one.

/// The slot that closes the ring.
const ENDS: u32 = 0;

#[derive(Debug)]
struct Slot<T> {
    value: Option<T>,
    next: u32,
    previous: u32,
}

/// See the module's header.
#[derive(Debug)]
pub(super) struct Ring<T> {
    slots: Vec<Slot<T>>,
    /// The first free slot, or [`ENDS`].
    free: u32,
    len: usize,
    /// Slots that were looked at, ever.
    #[cfg(test)]
    pub(super) steps: std::cell::Cell<u64>,
}

impl<T> Ring<T> {
    pub(super) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: ENDS,
            len: 0,
            #[cfg(test)]
            steps: std::cell::Cell::new(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Puts an entry at the end; returns the number of its slot, which is not 0.
    pub(super) fn push_back(&mut self, value: T) -> u32 {
        let slot = |value, at| Slot {
            value,
            next: at,
            previous: at,
        };
        if self.slots.is_empty() {
            self.slots.push(slot(None, ENDS));
        }
        let at = match self.free {
            ENDS => {
                let at = u32::try_from(self.slots.len()).expect("fewer than 2^32 entries");
                self.slots.push(slot(Some(value), at));
                at
            }
            at => {
                self.free = self.slot(at).next;
                self.slot(at).value = Some(value);
                at
            }
        };
        self.link_at_end(at);
        self.len += 1;
        at
    }

    /// Takes out the entry with this number.
    pub(super) fn remove(&mut self, at: u32) -> T {
        self.unlink(at);
        let value = self.slot(at).value.take().expect("an entry of the ring");
        self.slot(at).next = self.free;
        self.free = at;
        self.len -= 1;
        if self.len == 0 {
            (self.slots, self.free) = (Vec::new(), ENDS);
        }
        value
    }

    /// The entry with this number.
    pub(super) fn get_mut(&mut self, at: u32) -> &mut T {
        self.slot(at).value.as_mut().expect("an entry of the ring")
    }

    /// Moves the first entry to the end and returns it.
    pub(super) fn rotate(&mut self) -> Option<&T> {
        if self.len == 0 {
            return None;
        }
        let first = self.slot(ENDS).next;
        self.unlink(first);
        self.link_at_end(first);
        self.slots[first as usize].value.as_ref()
    }

    /// All entries, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let mut at = ENDS;
        std::iter::from_fn(move || {
            at = self.slots.get(at as usize)?.next;
            self.slots[at as usize].value.as_ref()
        })
    }

    fn slot(&mut self, at: u32) -> &mut Slot<T> {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
        &mut self.slots[at as usize]
    }

    fn unlink(&mut self, at: u32) {
        let (next, previous) = (self.slot(at).next, self.slot(at).previous);
        self.slot(previous).next = next;
        self.slot(next).previous = previous;
    }

    fn link_at_end(&mut self, at: u32) {
        let last = std::mem::replace(&mut self.slot(ENDS).previous, at);
        self.slot(last).next = at;
        (self.slot(at).next, self.slot(at).previous) = (ENDS, last);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    fn entries(ring: &Ring<u32>) -> Vec<u32> {
        ring.iter().copied().collect()
    }

    #[test]
    fn entries_stay_in_order() {
        let mut ring = Ring::new();
        assert_eq!(ring.rotate(), None);
        assert_eq!(ring.len(), 0);
        let numbers: Vec<u32> = (10..14).map(|value| ring.push_back(value)).collect();
        assert_eq!(entries(&ring), [10, 11, 12, 13]);
        assert_eq!(ring.rotate(), Some(&10));
        assert_eq!(entries(&ring), [11, 12, 13, 10]);
        assert_eq!(ring.remove(numbers[2]), 12);
        assert_eq!(ring.push_back(14), numbers[2], "the slot is used again");
        assert_eq!(entries(&ring), [11, 13, 10, 14]);
        for at in numbers {
            ring.remove(at);
        }
        assert_eq!((entries(&ring), ring.len()), (vec![], 0));
        assert_eq!(ring.slots.capacity(), 0, "an empty ring takes no memory");
    }

    #[test]
    fn it_does_what_a_queue_does() {
        let (mut ring, mut queue) = (Ring::new(), VecDeque::new());
        let mut seed = 7_u32;
        for step in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            match seed >> 30 {
                0 | 1 => queue.push_back((step, ring.push_back(step))),
                2 => {
                    if let Some(first) = queue.pop_front() {
                        queue.push_back(first);
                    }
                    assert_eq!(ring.rotate(), queue.back().map(|(value, _)| value));
                }
                _ if queue.is_empty() => {}
                _ => {
                    let at = (seed >> 8) as usize % queue.len();
                    let (value, number) = queue.remove(at).expect("below its length");
                    assert_eq!(ring.remove(number), value);
                }
            }
            assert_eq!(ring.len(), queue.len());
        }
        assert!(ring.iter().eq(queue.iter().map(|(value, _)| value)));
    }

    #[test]
    fn no_operation_takes_longer_in_a_long_ring() {
        let steps = |entries: u32| {
            let mut ring = Ring::new();
            let numbers: Vec<u32> = (0..entries).map(|value| ring.push_back(value)).collect();
            ring.steps.set(0);
            ring.rotate();
            *ring.get_mut(numbers[1]) = 7;
            ring.remove(numbers[0]);
            ring.remove(numbers[entries as usize / 2]);
            ring.push_back(0);
            ring.steps.get()
        };
        assert_eq!(steps(10), steps(10_000));
    }
}

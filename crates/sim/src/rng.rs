//! A small, repeatable source of pseudo-random numbers.
//!
//! # Model
//!
//! One 64-bit seed fixes everything that is drawn, on every machine and in every build, so a failed
//! run is repeated from the number that it printed. The state is a Weyl sequence whose every step
//! is scrambled (the SplitMix64 construction): not for secrets, good enough to steer tests.

/// A repeatable generator.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
}

/// Scrambles one word: a bijection in which every input bit reaches every output bit.
pub const fn scramble(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    pub const fn new(seed: u64) -> Self {
        Self {
            state: scramble(seed ^ 0x5bf0_3635),
        }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        scramble(self.state)
    }

    /// A number below `bound`, which must not be zero. The bias for bounds far below 2⁶⁴ is too
    /// small to matter here.
    ///
    /// # Panics
    /// If `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below zero");
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    ///
    /// # Panics
    /// If `low > high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high, "empty range {low}..={high}");
        match (high - low).checked_add(1) {
            Some(bound) => low + self.below(bound),
            None => self.next_u64(),
        }
    }

    /// True in `part` of `whole` cases.
    pub fn one_in(&mut self, part: u64, whole: u64) -> bool {
        self.below(whole) < part
    }

    /// A separate generator for a part of the simulation, so that its number of draws does not
    /// affect later draws here.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn one_seed_gives_one_sequence() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..32).map(|_| rng.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn bounds_are_kept_and_reached() {
        let mut rng = Rng::new(1);
        let mut seen = [false; 8];
        for _ in 0..1000 {
            seen[rng.below(8) as usize] = true;
            let n = rng.between(5, 6);
            assert!((5..=6).contains(&n));
        }
        assert!(seen.iter().all(|&reached| reached));
        assert_eq!(rng.between(9, 9), 9);
        rng.between(0, u64::MAX);
    }

    #[test]
    fn every_bit_of_the_output_moves() {
        let mut rng = Rng::new(0);
        let (mut ones, mut zeros) = (0, 0);
        for _ in 0..64 {
            let word = rng.next_u64();
            ones |= word;
            zeros |= !word;
        }
        assert_eq!((ones, zeros), (u64::MAX, u64::MAX));
    }
}

//! Median and deviation of samples.

/// The middle of the values, or the mean of the two in the middle.
///
/// # Panics
/// If there are none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The standard deviation of the values in percent of their mean; 0 for fewer than two.
pub(crate) fn stddev_percent(values: &[f64]) -> f64 {
    if values.len() < 2 {
        return 0.0;
    }
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    100.0 * (squares / (n - 1.0)).sqrt() / mean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(stddev_percent(&[7.0]), 0.0);
        assert!((stddev_percent(&[9.0, 11.0]) - 200.0_f64.sqrt()).abs() < 1e-9);
    }
}

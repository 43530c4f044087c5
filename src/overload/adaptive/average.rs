//! The average of some numbers, and how sure it is.

/// What is slight is no difference.
const SLIGHT: f64 = 0.05;

/// How many numbers are remembered.
const MEMORY: f64 = 400.0;

/// The average of some numbers, and how sure it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Average {
    sum: f64,
    squares: f64,
    pub(super) count: f64,
}

impl Average {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0.0
    }

    pub(super) fn add(&mut self, value: f64) {
        self.sum += value;
        self.squares += value * value;
        self.count += 1.0;
    }

    pub(super) fn mean(&self) -> f64 {
        self.sum / self.count.max(1.0)
    }

    fn variance(&self) -> f64 {
        (self.squares / self.count.max(1.0) - self.mean().powi(2)).max(0.0)
    }

    /// The square of the standard error.
    fn doubt(&self) -> f64 {
        self.variance() / self.count.max(1.0)
    }

    /// What it is without the standard error.
    pub(super) fn at_least(&self) -> f64 {
        self.mean() - self.doubt().sqrt()
    }

    pub(super) fn agrees_with(&self, other: &Self, sure: f64) -> bool {
        let doubt = SLIGHT + sure * (self.doubt() + other.doubt()).sqrt();
        !self.is_empty() && (self.mean() - other.mean()).abs() <= doubt
    }

    /// The same numbers, all of them by so much more.
    pub(super) fn moved(&self, by: f64) -> Self {
        let mean = self.mean() + by;
        let squares = (self.variance() + mean * mean) * self.count;
        Self { sum: mean * self.count, squares, count: self.count }
    }

    /// Both together; what is long ago fades.
    pub(super) fn and(&self, other: &Self) -> Self {
        let kept = (MEMORY / (self.count + other.count)).min(1.0);
        Self {
            sum: (self.sum + other.sum) * kept,
            squares: (self.squares + other.squares) * kept,
            count: (self.count + other.count) * kept,
        }
    }
}

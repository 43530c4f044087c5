//! How large a limit must be: limits of the same kind with other numbers.
//!
//! What a limit counts does not depend on its size as long as it rejects nothing. So a limit that is
//! too large to reject tells, by the most that it has counted, how large it has to be; only a bucket
//! must know first how quickly it drains.

use super::bucket::Bucket;
use super::fixed::Fixed;
use super::sliding::Sliding;
use super::{Kind, MAX_BURST, MAX_LOG, Quota, QuotaError, Rate, Shape};

impl Quota {
    /// One that counts the same and never rejects. Of a bucket, the count of one window.
    #[must_use]
    pub fn boundless(&self) -> Self {
        let rate = Rate { count: MAX_BURST, ..self.rate };
        let shape = match &self.shape {
            Shape::Bucket(_) | Shape::Leaky(_) => {
                Shape::Fixed(Fixed::new(MAX_BURST, super::Windows::Every(rate.window)))
            }
            Shape::Fixed(fixed) => Shape::Fixed(Fixed::new(MAX_BURST, fixed.windows().clone())),
            Shape::Sliding(_) => Shape::Sliding(Sliding::new(rate)),
            Shape::Log(_) => {
                let rate = Rate { count: MAX_LOG, ..rate };
                return Self::of(rate, Shape::Log(super::log::SlidingLog::new(rate)));
            }
            Shape::Concurrency(_) => Shape::Concurrency(super::InFlight(MAX_BURST)),
        };
        Self::of(rate, shape)
    }

    /// A bucket that drains at so many per window, and is as deep as can be.
    pub fn bottomless(&self, count: u32) -> Result<Self, QuotaError> {
        let rate = Rate { count, ..self.rate };
        let mut depths = (0..u32::BITS).map(|halves| MAX_BURST >> halves);
        let deepest = depths.find_map(|depth| Bucket::new(rate, depth).ok());
        deepest.map_or_else(
            || Self::token_bucket(rate, Some(1)),
            |bucket| Ok(Self::of(rate, Shape::Bucket(bucket))),
        )
    }

    /// The same limit with other numbers: N, and the bucket's size or the queue's length and the
    /// longest wait, where there is one.
    pub fn resized(&self, count: u32, size: u32, max_wait: u64) -> Result<Self, QuotaError> {
        let rate = Rate { count, ..self.rate };
        match &self.shape {
            Shape::Bucket(_) => Self::token_bucket(rate, Some(size)),
            Shape::Leaky(_) => Self::leaky_bucket(rate, size, max_wait),
            Shape::Fixed(fixed) => {
                super::valid(rate)?;
                Ok(Self::of(rate, Shape::Fixed(Fixed::new(count, fixed.windows().clone()))))
            }
            Shape::Sliding(_) => Self::sliding_window(rate),
            Shape::Log(_) => Self::sliding_log(rate),
            Shape::Concurrency(_) => Self::concurrency(count),
        }
    }

    /// Whether it drains as time goes by, rather than at the ends of windows.
    pub fn is_bucket(&self) -> bool {
        self.kind == Kind::Bucket
    }
}

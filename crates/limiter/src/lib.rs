//! Quota over any driver below.

//! How long a race goes on: ten thousand rounds, or as long as the suite has for it. DIVVY_TEST_ROUNDS asks for more.

/// Rounds, and seconds after which a race ends even so.
pub fn rounds() -> (u64, u64) {
    match std::env::var("DIVVY_TEST_ROUNDS")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        Some(rounds) => (rounds, 600),
        None => (10_000, 8),
    }
}

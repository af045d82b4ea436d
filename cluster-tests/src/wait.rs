//! Waiting for a condition, always with a deadline.

use std::time::Duration;

use crate::clock;

/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Looks again and again until there is something; panics once the deadline has passed.
pub async fn until<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> T {
    until_seen(what, deadline, async || look().await.ok_or_else(String::new)).await
}

/// Looks again and again until there is something; panics once the deadline has passed, and tells
/// what was seen last instead.
pub async fn until_seen<T>(
    what: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T, String>,
) -> T {
    let started = clock::monotonic();
    loop {
        let seen = match look().await {
            Ok(found) => return found,
            Err(seen) => seen,
        };
        assert!(started.elapsed() < deadline, "waited {deadline:?} in vain for {what} {seen}");
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_thing_found_ends_the_wait() {
        let mut looks = 0;
        let found = until("the third look", Duration::from_secs(5), async || {
            looks += 1;
            (looks == 3).then_some(looks)
        });
        assert_eq!(found.await, 3);
    }

    #[tokio::test]
    #[should_panic(expected = "in vain for nothing")]
    async fn a_wait_ends_at_its_deadline() {
        until("nothing", Duration::from_millis(1), async || None::<()>).await;
    }
}

//! How uncertain the nodes' clocks were, as nodes tell it: a write may see an item for so long after its end.

use std::time::Duration;

/// What a node logs when it settles on a time, and a gauge tells in between.
const LOGGED: &str = "width_micros=";
/// What it logs when it does not: its writes then tell no time at all, however long that lasts.
const CARRIED_ON: &str = "no majority of clocks agrees; carrying on";
/// What is allowed for beside twice the width.
const SLACK: Duration = Duration::from_millis(100);

/// The bound of how far writes may lag behind the time: by each node's log, and the widest that its gauge told.
/// A width grows slowly while a process runs, but for what it logs, so that a gauge that is read now and then tells
/// enough. `most` where nobody knows better.
pub fn write_lag(logs: &[String], gauge_seconds: f64, most: Duration) -> Duration {
    let Some(logged) = logs.iter().map(|log| widest(log)).collect::<Option<Vec<Duration>>>() else {
        return most;
    };
    let gauge = Duration::try_from_secs_f64(gauge_seconds).unwrap_or(most);
    let widest = logged.into_iter().fold(gauge, Duration::max);
    (widest * 2 + SLACK).min(most)
}

/// The widest that a log tells of; nothing if there is no bound.
fn widest(log: &str) -> Option<Duration> {
    if log.contains(CARRIED_ON) {
        return None;
    }
    let widths = log.split(LOGGED).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().ok().map(Duration::from_micros)
    });
    widths.collect::<Option<Vec<Duration>>>()?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_secs(2);

    fn lag_ms(logs: &[&str], gauge_seconds: f64) -> u128 {
        let logs: Vec<String> = logs.iter().map(|log| (*log).to_string()).collect();
        write_lag(&logs, gauge_seconds, MOST).as_millis()
    }

    #[test]
    fn a_write_lags_by_twice_the_widest_width_and_a_little() {
        let logs = ["x: a majority of clocks agrees width_micros=21000\nwidth_micros=40000 \n"];
        assert_eq!(lag_ms(&logs, 0.03), 180);
        assert_eq!(lag_ms(&logs, 0.05), 200);
        assert_eq!(lag_ms(&["width_micros=1", "width_micros=300000"], 0.0), 700);
        assert_eq!(lag_ms(&["width_micros=1500000"], 0.0), 2000);
    }

    #[test]
    fn without_a_bound_it_may_lag_by_the_most() {
        assert_eq!(lag_ms(&["width_micros=1", "nothing"], 0.0), 2000);
        assert_eq!(lag_ms(&["width_micros=odd"], 0.0), 2000);
        let carried = "width_micros=1\nWARN no majority of clocks agrees; carrying on\n";
        assert_eq!(lag_ms(&[carried], 0.0), 2000);
        assert_eq!(lag_ms(&["width_micros=1"], f64::NAN), 2000);
    }
}

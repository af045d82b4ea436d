//! Somebody who sees the true time and every answer, and remembers what was promised.

/// What must never be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Promise {
    /// Nothing is gone before its time.
    Early,
    /// Nothing is shown that had expired when it was fetched, by the true time.
    Late,
    /// What somebody was told is gone is never shown again.
    ForGood,
    /// A sweep removes only what is dead.
    Sweep,
}

/// What the witness knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Witness {
    /// The stored version has reached its expiry under a policy that was in force then.
    ripe: bool,
    /// Somebody was told that the versions below are gone.
    gone_below: u8,
    broken: Option<Promise>,
}

impl Witness {
    /// Sees the true time pass.
    pub(crate) fn watch(&mut self, is_overdue: bool) {
        self.ripe |= is_overdue;
    }

    pub(crate) fn is_ripe(self) -> bool {
        self.ripe
    }

    pub(crate) fn gone_below(self) -> u8 {
        self.gone_below
    }

    pub(crate) fn broken(self) -> Option<Promise> {
        self.broken
    }

    /// Another version, or none, is stored now.
    pub(crate) fn forgets_the_version(&mut self) {
        self.ripe = false;
    }

    /// Hears the answer that all versions below are gone.
    pub(crate) fn hears_gone(&mut self, below: u8, ripe: bool) {
        if !ripe {
            self.broken.get_or_insert(Promise::Early);
        }
        self.gone_below = self.gone_below.max(below);
    }

    /// Hears that this version is alive, from an operation that was asked for when versions below
    /// `since` were gone.
    pub(crate) fn hears_alive(&mut self, serial: u8, since: u8, overdue: bool) {
        if serial < since {
            self.broken.get_or_insert(Promise::ForGood);
        }
        if overdue {
            self.broken.get_or_insert(Promise::Late);
        }
        self.gone_below = self.gone_below.max(serial);
    }

    /// Sees a sweep take the stored version.
    pub(crate) fn sees_removal(&mut self) {
        if !self.ripe {
            self.broken.get_or_insert(Promise::Sweep);
        }
    }
}

//! A list with reserved capacity, which grows while others read it.

use std::fmt;
use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A list that only grows, up to its initial capacity. Reading takes no lock.
pub(crate) struct AppendVec<T> {
    seats: Box<[OnceLock<T>]>,
    taken: AtomicUsize,
}

impl<T> AppendVec<T> {
    /// A list of `taken` with room for `more`.
    pub(crate) fn new(taken: impl IntoIterator<Item = T>, more: usize) -> Self {
        let taken: Vec<OnceLock<T>> = taken.into_iter().map(OnceLock::from).collect();
        let count = taken.len();
        let free = (0..more).map(|_| OnceLock::new());
        Self { seats: taken.into_iter().chain(free).collect(), taken: AtomicUsize::new(count) }
    }

    /// The same list with room for `more` further entries.
    pub(crate) fn with_room(self, more: usize) -> Self {
        Self::new(self.seats.into_iter().filter_map(OnceLock::into_inner), more)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    /// The maximum number of entries.
    pub(crate) fn room(&self) -> usize {
        self.seats.len()
    }

    /// All entries, in the order in which they were added.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.seats.iter().map_while(OnceLock::get)
    }

    pub(crate) fn first(&self) -> Option<&T> {
        self.seats.first().and_then(OnceLock::get)
    }

    /// Takes the next seat; returns `item` if none is free. Only one thread may call this at a
    /// time.
    pub(crate) fn push(&self, item: T) -> Result<usize, T> {
        let index = self.len();
        match self.seats.get(index) {
            Some(seat) => seat.set(item)?,
            None => return Err(item),
        }
        // Release pairs with the acquire in `len`: a thread that sees the seat also sees its
        // contents.
        self.taken.store(index + 1, Ordering::Release);
        Ok(index)
    }
}

impl<T> Index<usize> for AppendVec<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.seats[index].get().expect("only seats that are taken are asked for")
    }
}

impl<T: fmt::Debug> fmt::Debug for AppendVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn seats_are_taken_one_after_the_other_while_others_read() {
        let seats = AppendVec::new([0, 1], 100).with_room(1000);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while seats.len() < seats.room() {
                        let len = seats.len();
                        let all = seats.iter().copied().collect::<Vec<_>>();
                        assert!(
                            all.len() >= len
                                && all.iter().enumerate().all(|(at, item)| at == *item)
                        );
                        assert_eq!(seats[len - 1], len - 1);
                    }
                });
            }
            (2..1002).for_each(|item| assert_eq!(seats.push(item), Ok(item)));
        });

        assert_eq!(seats.push(7), Err(7), "there is no more room");
    }
}

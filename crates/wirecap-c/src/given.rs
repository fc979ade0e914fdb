//! What programs hand over by pointers: texts, lists, places for results.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::slice;

use crate::failure::{Failure, Status};

fn missing(name: &str) -> Failure {
    Failure::new(Status::Argument, format!("{name} is null"))
}

/// A text of the program's.
///
/// # Safety
///
/// `text` must be null or a string, which stays for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(missing(name));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::new(Status::Argument, format!("{name} is not UTF-8: {text:?}")))
}

/// A list of the program's.
///
/// # Safety
///
/// `first` must be null or point to `count` values, which stay for `'a`.
pub(crate) unsafe fn list<'a, T>(first: *const T, count: usize, name: &str) -> Result<&'a [T], Failure> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(missing(name)),
        // What an error's -1 becomes.
        _ if count > isize::MAX as usize / size_of::<T>() => {
            Err(Failure::new(Status::Argument, format!("{name} cannot have a length of {count}")))
        }
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// A place for a result, in the program's memory.
pub(crate) struct Room<T>(NonNull<T>);

impl<T> Room<T> {
    /// The place that `place` points to.
    ///
    /// # Safety
    ///
    /// `place` must be null or point to room for a `T`, which is the program's to give as long as the value
    /// lives.
    pub(crate) unsafe fn at(place: *mut T, name: &str) -> Result<Self, Failure> {
        NonNull::new(place).map(Self).ok_or_else(|| missing(name))
    }

    /// Puts the result there.
    pub(crate) fn put(&self, value: T) {
        // SAFETY: the promise of `at`. What was there is overwritten, whatever it was.
        unsafe { self.0.write(value) }
    }
}

/// Places for several results, in the program's memory.
pub(crate) struct Rooms<T> {
    first: NonNull<T>,
    count: usize,
}

impl<T> Rooms<T> {
    /// The places from `first` on.
    ///
    /// # Safety
    ///
    /// As [`Room::at`], for `count` values.
    pub(crate) unsafe fn at(first: *mut T, count: usize, name: &str) -> Result<Self, Failure> {
        match NonNull::new(first) {
            Some(first) => Ok(Self { first, count }),
            None if count == 0 => Ok(Self { first: NonNull::dangling(), count }),
            None => Err(missing(name)),
        }
    }

    /// Puts in as many of the values as there is room for; how many.
    #[inline]
    pub(crate) fn fill(self, values: impl Iterator<Item = T>) -> usize {
        let mut filled = 0;
        for value in values.take(self.count) {
            // SAFETY: the promise of `at`; there is room for `count` values.
            unsafe { self.first.add(filled).write(value) };
            filled += 1;
        }
        filled
    }
}

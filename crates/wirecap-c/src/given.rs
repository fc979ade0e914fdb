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
        // A negative error code passed as a length.
        _ if count > isize::MAX as usize / size_of::<T>() => {
            Err(Failure::new(Status::Argument, format!("invalid length of {name}: {count}")))
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

/// Room for several results whose structures may be longer or shorter in the program, which was compiled with another
/// version of the header. Their common members come first.
pub(crate) struct SizedRooms<T> {
    rooms: Rooms<T>,
    /// Bytes from one to the next.
    size: usize,
}

impl<T: Copy> SizedRooms<T> {
    /// The places from `first` on, each of `size` bytes.
    ///
    /// # Safety
    ///
    /// As [`Room::at`], for `count` values of `size` bytes each. `T` must be a structure of C's without padding.
    pub(crate) unsafe fn at(first: *mut T, size: usize, count: usize, name: &str) -> Result<Self, Failure> {
        if !size.is_multiple_of(align_of::<T>()) || !(SIZE_MIN..=SIZE_MAX).contains(&size) {
            let text = format!("invalid size {size} of {name}: expected sizeof the structure");
            return Err(Failure::new(Status::Argument, text));
        }
        // SAFETY: the caller's promise.
        Ok(Self { rooms: unsafe { Rooms::at(first, count, name) }?, size })
    }

    /// As [`Rooms::fill`]. What the program knows more of is 0.
    #[inline]
    pub(crate) fn fill(self, values: impl Iterator<Item = T>) -> usize {
        if self.size == size_of::<T>() {
            return self.rooms.fill(values);
        }
        let common = self.size.min(size_of::<T>());
        let mut filled = 0;
        for value in values.take(self.rooms.count) {
            // SAFETY: the promise of `at`; there is room for `count` values of `size` bytes.
            unsafe {
                let place = self.rooms.first.cast::<u8>().add(filled * self.size);
                place.as_ptr().copy_from_nonoverlapping((&raw const value).cast(), common);
                place.add(common).as_ptr().write_bytes(0, self.size - common);
            }
            filled += 1;
        }
        filled
    }
}

/// No structure is shorter, nor ever will be longer.
const SIZE_MIN: usize = 16;
const SIZE_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_other_versions_share_their_common_members() {
        let values = [[1_u64, 2, 3, 4], [5, 6, 7, 8]];
        for (words, expected) in
            [(3, vec![1, 2, 3, 5, 6, 7]), (4, values.concat()), (5, vec![1, 2, 3, 4, 0, 5, 6, 7, 8, 0])]
        {
            let mut room = vec![9_u64; 10];
            // SAFETY: there is room for two of them.
            let rooms = unsafe { SizedRooms::<[u64; 4]>::at(room.as_mut_ptr().cast(), words * 8, 2, "them") };
            assert_eq!(rooms.unwrap().fill(values.into_iter()), 2);
            assert_eq!(room[..2 * words], expected, "{words} words");
            assert!(room[2 * words..].iter().all(|&word| word == 9));
        }
        // SAFETY: nothing is written.
        let refused =
            |size| unsafe { SizedRooms::<[u64; 4]>::at(std::ptr::null_mut(), size, 0, "them") }.is_err();
        assert!(refused(0) && refused(12) && refused(1 << 20) && !refused(32));
    }
}

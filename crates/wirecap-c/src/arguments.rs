//! Arguments passed by pointer: texts, lists, and space for results.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};
use std::ptr::NonNull;
use std::slice;

use crate::failure::{Failure, Status};

fn missing(name: &str) -> Failure {
    Failure::new(Status::Argument, format!("{name} is null"))
}

/// A text from the program.
///
/// # Safety
///
/// `text` must be null or a string that is valid for `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(missing(name));
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Failure::new(Status::Argument, format!("{name} is not UTF-8: {text:?}")))
}

/// A list from the program.
///
/// # Safety
///
/// `first` must be null or point to `count` values that are valid for `'a`.
pub(crate) unsafe fn list<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(missing(name)),
        // For example, a negative error code passed as a length.
        _ if count > isize::MAX as usize / size_of::<T>() => {
            Err(Failure::new(Status::Argument, format!("invalid length of {name}: {count}")))
        }
        // SAFETY: guaranteed by the caller.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// Space for a result in the program's memory.
pub(crate) struct Room<T>(NonNull<T>);

impl<T> Room<T> {
    /// The space at `place`.
    ///
    /// # Safety
    ///
    /// `place` must be null or point to space for a `T`, which only this value may use while it
    /// lives.
    pub(crate) unsafe fn at(place: *mut T, name: &str) -> Result<Self, Failure> {
        NonNull::new(place).map(Self).ok_or_else(|| missing(name))
    }

    /// Stores the result.
    pub(crate) fn put(&self, value: T) {
        // SAFETY: guaranteed by the caller of `at`. The previous contents are overwritten without
        // being read.
        unsafe { self.0.write(value) }
    }
}

/// Space for several results in the program's memory.
pub(crate) struct Rooms<T> {
    first: NonNull<T>,
    count: usize,
}

impl<T> Rooms<T> {
    /// The space from `first` on.
    ///
    /// # Safety
    ///
    /// As for [`Room::at`], for `count` values.
    pub(crate) unsafe fn at(first: *mut T, count: usize, name: &str) -> Result<Self, Failure> {
        match NonNull::new(first) {
            Some(first) => Ok(Self { first, count }),
            None if count == 0 => Ok(Self { first: NonNull::dangling(), count }),
            None => Err(missing(name)),
        }
    }

    /// Stores as many of the values as fit. Returns their number.
    #[inline]
    pub(crate) fn fill(self, values: impl Iterator<Item = T>) -> usize {
        let mut filled = 0;
        for value in values.take(self.count) {
            // SAFETY: guaranteed by the caller of `at`; there is space for `count` values.
            unsafe { self.first.add(filled).write(value) };
            filled += 1;
        }
        filled
    }
}

/// Space for several structures whose size may differ in the program, because it was compiled with
/// another version of the header. The structures begin with the same members.
pub(crate) struct SizedRooms<T> {
    rooms: Rooms<T>,
    /// Size of a structure in the program.
    size: usize,
}

impl<T: Copy> SizedRooms<T> {
    /// The space from `first` on, for structures of `size` bytes.
    ///
    /// # Safety
    ///
    /// As for [`Room::at`], for `count` values of `size` bytes each. `T` must be a C structure
    /// without padding.
    pub(crate) unsafe fn at(
        first: *mut T,
        size: usize,
        count: usize,
        name: &str,
    ) -> Result<Self, Failure> {
        if !size.is_multiple_of(align_of::<T>()) || !(SIZE_MIN..=SIZE_MAX).contains(&size) {
            let text = format!("invalid size {size} of {name}: expected sizeof the structure");
            return Err(Failure::new(Status::Argument, text));
        }
        // SAFETY: guaranteed by the caller.
        Ok(Self { rooms: unsafe { Rooms::at(first, count, name) }?, size })
    }

    /// Like [`Rooms::fill`]. Members that exist only in the program's version are set to 0.
    #[inline]
    pub(crate) fn fill(self, values: impl Iterator<Item = T>) -> usize {
        if self.size == size_of::<T>() {
            return self.rooms.fill(values);
        }

        let common = self.size.min(size_of::<T>());
        let mut filled = 0;

        for value in values.take(self.rooms.count) {
            // SAFETY: guaranteed by the caller of `at`; there is space for `count` values of `size`
            // bytes.
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

/// Limits of a structure's size in all versions.
const SIZE_MIN: usize = 16;
const SIZE_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_of_other_versions_share_their_common_members() {
        let values = [[1_u64, 2, 3, 4], [5, 6, 7, 8]];
        for (words, expected) in [
            (3, vec![1, 2, 3, 5, 6, 7]),
            (4, values.concat()),
            (5, vec![1, 2, 3, 4, 0, 5, 6, 7, 8, 0]),
        ] {
            let mut room = vec![9_u64; 10];
            // SAFETY: there is space for two structures.
            let rooms = unsafe {
                SizedRooms::<[u64; 4]>::at(room.as_mut_ptr().cast(), words * 8, 2, "them")
            };
            assert_eq!(rooms.unwrap().fill(values.into_iter()), 2);
            assert_eq!(room[..2 * words], expected, "{words} words");
            assert!(room[2 * words..].iter().all(|&word| word == 9));
        }

        let refused = |size| {
            // SAFETY: the call writes nothing.
            unsafe { SizedRooms::<[u64; 4]>::at(std::ptr::null_mut(), size, 0, "them") }.is_err()
        };
        assert!(refused(0) && refused(12) && refused(1 << 20) && !refused(32));
    }
}

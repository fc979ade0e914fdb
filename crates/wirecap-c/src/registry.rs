//! The objects to which the handles of programs refer.
//!
//! A handle has the number of a slot, the slot's generation and the type: a closed handle, or one
//! of another type, is an error even if the slot has been reused. Slots are locked separately, so
//! threads that use different handles do not wait for each other.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
    TryLockError,
};

use crate::failure::{Failure, Status, value};

const KIND_BITS: u32 = 4;
const GENERATION_SHIFT: u32 = 32;
const INDEX_BITS: u32 = GENERATION_SHIFT - KIND_BITS;
const _: () = assert!(usize::BITS == 64, "a handle has 64 bits");
/// Slots of the first segment; each further segment has twice as many.
const FIRST_PLACES: usize = 64;
/// All segments together have `2^INDEX_BITS - FIRST_PLACES` slots.
const SEGMENTS: usize = (INDEX_BITS - FIRST_PLACES.ilog2()) as usize;
const PLACES: u32 = (FIRST_PLACES * ((1 << SEGMENTS) - 1)) as u32;

/// Objects for which programs get handles.
pub(crate) trait Kept: Sized + 'static {
    /// The type number in handles, from 1.
    const KIND: usize;
    /// The type's name, for errors.
    const NAME: &'static str;

    /// The registry of all objects of this type.
    fn registry() -> &'static Registry<Self>;
}

/// A handle from the program. Until it is looked up, it may be null or any number.
#[repr(transparent)]
pub(crate) struct Handle<T> {
    value: *mut c_void,
    kept: PhantomData<fn() -> T>,
}

impl<T> Clone for Handle<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Handle<T> {}

impl<T> PartialEq for Handle<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

/// All objects of one type for which programs have handles.
pub(crate) struct Registry<T> {
    segments: [OnceLock<Segment<T>>; SEGMENTS],
    free: Mutex<Free>,
}

type Segment<T> = Box<[RwLock<Slot<T>>]>;

struct Slot<T> {
    /// The number of objects that this slot has contained before.
    generation: u32,
    thing: Option<T>,
}

struct Free {
    /// The first slot that was never used.
    unused: u32,
    /// Free slots; the last one is used first.
    left: Vec<u32>,
}

impl<T> Registry<T> {
    pub(crate) const fn new() -> Self {
        Self {
            segments: [const { OnceLock::new() }; SEGMENTS],
            free: Mutex::new(Free { unused: 0, left: Vec::new() }),
        }
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_place(&self) -> Option<u32> {
        let mut free = self.free();
        if let Some(index) = free.left.pop() {
            return Some(index);
        }
        let index = free.unused;
        (index < PLACES).then(|| {
            free.unused += 1;
            index
        })
    }

    /// The slot with this index, if it exists.
    fn place(&self, index: u32) -> Option<&RwLock<Slot<T>>> {
        let (segment, offset) = locate(index);
        self.segments.get(segment)?.get()?.get(offset)
    }

    /// The slot with this index, created if necessary.
    fn make_place(&self, index: u32) -> &RwLock<Slot<T>> {
        let (segment, offset) = locate(index);
        let empty = |_| RwLock::new(Slot { generation: 0, thing: None });
        &self.segments[segment].get_or_init(|| (0..FIRST_PLACES << segment).map(empty).collect())
            [offset]
    }
}

fn locate(index: u32) -> (usize, usize) {
    let number = index as usize + FIRST_PLACES;
    let segment = (number.ilog2() - FIRST_PLACES.ilog2()) as usize;
    (segment, number - (FIRST_PLACES << segment))
}

impl<T: Kept> Handle<T> {
    /// A handle for `thing`.
    pub(crate) fn keep(thing: T) -> Result<Self, Failure> {
        let registry = T::registry();
        let index = registry.take_place().ok_or_else(|| {
            Failure::new(
                Status::Memory,
                format!("too many handles: {PLACES} of type {} exist already", T::NAME),
            )
        })?;
        let mut place = write(registry.make_place(index));
        place.thing = Some(thing);
        Ok(Self::of(index, place.generation))
    }

    /// The null handle.
    pub(crate) fn null() -> Self {
        Self { value: ptr::null_mut(), kept: PhantomData }
    }

    pub(crate) fn is_null(self) -> bool {
        self.value.is_null()
    }

    fn of(index: u32, generation: u32) -> Self {
        let value =
            (generation as usize) << GENERATION_SHIFT | (index as usize) << KIND_BITS | T::KIND;
        Self { value: ptr::without_provenance_mut(value), kept: PhantomData }
    }

    /// The index and generation of its slot.
    fn parts(self) -> Option<(u32, u32)> {
        let value = self.value.addr();
        let is_kind = value & ((1 << KIND_BITS) - 1) == T::KIND;
        let index = (value as u32) >> KIND_BITS;
        is_kind.then_some((index, (value >> GENERATION_SHIFT) as u32))
    }

    fn place(self) -> Result<(&'static RwLock<Slot<T>>, u32), Failure> {
        let found = self
            .parts()
            .and_then(|(index, generation)| Some((T::registry().place(index)?, generation)));
        found.ok_or_else(|| self.unknown())
    }

    #[cold]
    fn unknown(self) -> Failure {
        let what =
            if self.value.is_null() { "null" } else { "closed already, or was never opened" };
        Failure::new(Status::Handle, format!("the {} is {what}", T::NAME))
    }

    /// The object, which is not removed before the guard is dropped.
    pub(crate) fn read(self) -> Result<Reading<T>, Failure> {
        let (place, generation) = self.place()?;
        let guard = place.read().unwrap_or_else(PoisonError::into_inner);
        if guard.generation != generation || guard.thing.is_none() {
            return Err(self.unknown());
        }
        Ok(Reading(guard))
    }

    /// The object for exclusive changes.
    pub(crate) fn write(self) -> Result<Writing<T>, Failure> {
        let (place, generation) = self.place()?;
        let guard = write(place);
        if guard.generation != generation || guard.thing.is_none() {
            return Err(self.unknown());
        }
        Ok(Writing(guard))
    }

    /// Removes and returns the object. The handle is invalid from now on.
    pub(crate) fn take(self) -> Result<T, Failure> {
        let (place, generation) = self.place()?;
        let mut guard = write(place);
        let thing = if guard.generation == generation { guard.thing.take() } else { None };
        let thing = thing.ok_or_else(|| self.unknown())?;
        guard.generation = generation.wrapping_add(1);
        drop(guard);
        let index = self.parts().expect("its place was found").0;
        T::registry().free().left.push(index);
        Ok(thing)
    }
}

/// Runs a function that returns a handle or null.
pub(crate) fn handle<T: Kept>(work: impl FnOnce() -> Result<Handle<T>, Failure>) -> Handle<T> {
    value(work).unwrap_or_else(Handle::null)
}

fn write<T>(place: &RwLock<Slot<T>>) -> RwLockWriteGuard<'_, Slot<T>> {
    place.write().unwrap_or_else(PoisonError::into_inner)
}

/// An object locked for reading.
pub(crate) struct Reading<T: 'static>(RwLockReadGuard<'static, Slot<T>>);

impl<T> Deref for Reading<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.thing.as_ref().expect("it was there when the guard was made")
    }
}

/// An object locked for writing.
pub(crate) struct Writing<T: 'static>(RwLockWriteGuard<'static, Slot<T>>);

impl<T> Deref for Writing<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.thing.as_ref().expect("it was there when the guard was made")
    }
}

impl<T> DerefMut for Writing<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.thing.as_mut().expect("it was there when the guard was made")
    }
}

/// Locks the mutex if it is free.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Object types with separate registries, since tests run in parallel.
    macro_rules! things {
        ($name:ident, $kind:literal) => {
            struct $name {
                number: u32,
            }
            impl Kept for $name {
                const KIND: usize = $kind;
                const NAME: &'static str = "thing";
                fn registry() -> &'static Registry<Self> {
                    static THINGS: Registry<$name> = Registry::new();
                    &THINGS
                }
            }
        };
    }

    things!(Thing, 12);
    things!(Guessed, 13);
    things!(Other, 14);
    things!(Hurried, 15);

    fn error<T>(outcome: Result<T, Failure>) -> String {
        outcome.err().expect("it fails").text
    }

    #[test]
    fn slots_are_numbered_without_gaps() {
        let places: Vec<_> = (0..1000).map(locate).collect();
        assert_eq!(places[..2], [(0, 0), (0, 1)]);
        assert_eq!(places[63..65], [(0, 63), (1, 0)]);
        assert_eq!(places.iter().collect::<HashSet<_>>().len(), 1000);
        let (segment, offset) = locate(PLACES - 1);
        assert_eq!((segment, offset), (SEGMENTS - 1, (FIRST_PLACES << segment) - 1));
    }

    #[test]
    fn a_handle_is_valid_until_its_object_is_removed() {
        let handles: Vec<_> =
            (0..500).map(|number| Handle::keep(Thing { number }).unwrap()).collect();
        for (number, handle) in handles.iter().enumerate() {
            assert_eq!(handle.read().unwrap().number, number as u32);
        }

        handles[7].write().unwrap().number = 70;
        assert_eq!(handles[7].take().unwrap().number, 70);
        assert_eq!(error(handles[7].take()), "the thing is closed already, or was never opened");

        let again = Handle::keep(Thing { number: 7 }).unwrap();
        assert_eq!(
            again.parts().unwrap().0,
            handles[7].parts().unwrap().0,
            "the place is used again"
        );
        assert!(
            handles[7].read().is_err() && handles[7].write().is_err() && handles[7].take().is_err()
        );
        assert_eq!(again.read().unwrap().number, 7);
    }

    #[test]
    fn an_invalid_handle_is_rejected() {
        assert_eq!(error(Handle::<Guessed>::null().read()), "the thing is null");
        let other = Handle::keep(Other { number: 2 }).unwrap();
        let kept = Handle::keep(Guessed { number: 1 }).unwrap();
        let first = kept.value.addr();
        for value in [other.value.addr(), 1, 13 | 1 << 4, 0xffff_fffd, usize::MAX, first | 7 << 40]
        {
            let made_up =
                Handle::<Guessed> { value: ptr::without_provenance_mut(value), kept: PhantomData };
            assert!(made_up.read().is_err() && made_up.take().is_err(), "{value:x}");
        }
        assert_eq!((kept.read().unwrap().number, other.read().unwrap().number), (1, 2));
    }

    #[test]
    fn threads_open_and_close_at_the_same_time() {
        let open_and_close = |thread: u32| {
            for round in 0..2000 {
                let number = |n: u32| thread << 20 | round << 2 | n;
                let handles =
                    [0, 1, 2].map(|n| Handle::keep(Hurried { number: number(n) }).unwrap());
                for (n, handle) in handles.into_iter().enumerate() {
                    assert_eq!(handle.take().unwrap().number, number(n as u32));
                    assert!(handle.take().is_err());
                }
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || open_and_close(thread));
            }
        });
    }
}

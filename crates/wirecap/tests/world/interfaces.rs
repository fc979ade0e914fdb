//! Interfaces that go away and come back.

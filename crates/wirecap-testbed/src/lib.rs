//! A test bed for capture engines: namespaces, veth pairs, an in-kernel generator, and counters that owe the engine nothing.

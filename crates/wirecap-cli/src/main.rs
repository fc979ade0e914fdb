//! The `wirecap` command.

fn main() {}

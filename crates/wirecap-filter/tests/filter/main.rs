//! Filters: compiled, run in every way that there is, and compared.

mod body;
mod choices;
mod compile;
mod differential;
mod expressions;
mod kernel;
mod limits;
mod mutated;
mod names;
mod packets;
mod programs;

//! Everyday tasks as people who know tcpdump, dumpcap, tshark, editcap, mergecap and capinfos type
//! them: each works at the first try, or is refused with the one command that works, which these
//! tests take from the message and run. The results are compared with those programs' own.

#[path = "../recording/mod.rs"]
mod recording;

mod day;
mod files;
mod live;
mod users;
mod wrong;

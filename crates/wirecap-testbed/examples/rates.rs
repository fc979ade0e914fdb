//! What the in-kernel generator reaches on this machine, into a receiver that drops everything.
//!
//! Run it alone: `cargo run --release -p wirecap-testbed --example rates`

use std::error::Error;

use wirecap_testbed::{
    Counters, Generator, Load, Namespace, Sizes, Traffic, VethPair, drop_program, loss_lock,
};

const FRAMES: u64 = 2_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let _alone = loss_lock()?;
    let (here, there) = (Namespace::new()?, Namespace::new()?);
    let pair = VethPair::new((&here, "a0"), (&there, "a1"), 2, 1500)?;
    let _dropping = drop_program(&pair.receiver)?;
    let sizes = [60, 128, 512, 1514].map(Sizes::fixed);
    for sizes in sizes.into_iter().chain([Sizes::imix()]) {
        println!("{sizes:?}");
        let traffic = Traffic { sizes, flows: 1000, ..Traffic::to(&pair.receiver) };
        let mut generator = Generator::new(&pair.sender, &traffic)?;
        let mut run = |loads: &[Load]| -> Result<(), Box<dyn Error>> {
            let mut counters = Counters::of(&pair.sender)?;
            let sent = generator.send(loads)?;
            let frames: u64 = sent.iter().map(|sent| sent.frames).sum();
            assert_eq!(frames, counters.since_start()?.handed_over_as_xdp());
            let rates: Vec<_> = sent.iter().map(|sent| sent.per_second().round()).collect();
            println!("  {rates:?} frames per second");
            Ok(())
        };
        run(&[Load::new(0, FRAMES)])?;
        run(&[Load::new(0, FRAMES), Load::new(1, FRAMES)])?;
        run(&[Load::new(0, FRAMES / 2).per_second(1_000_000)])?;
        run(&[Load::new(0, FRAMES / 20).per_second(100_000)])?;
        run(&[Load::new(0, FRAMES / 200).per_second(10_000)])?;
    }
    Ok(())
}

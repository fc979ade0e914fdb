//! Measures the rates of the senders on this machine. The receiver drops all frames.
//!
//! Run it on an otherwise idle machine: `cargo run --release -p wirecap-testbed --example rates`

use std::error::Error;

use std::time::Instant;

use wirecap_testbed::{
    AfXdpSender, Counters, Generator, Load, Namespace, Sizes, Stamp, Traffic, VethPair,
    drop_program, loss_lock,
};

const FRAMES: u64 = 2_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    let _alone = loss_lock()?;
    let here = Namespace::new()?;
    let there = Namespace::new()?;
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
        println!("  {:.0} frames per second through AF_XDP", af_xdp_rate(&pair, &traffic)?);
    }
    Ok(())
}

fn af_xdp_rate(pair: &VethPair, traffic: &Traffic) -> Result<f64, Box<dyn Error>> {
    let mut sender = AfXdpSender::on(&pair.sender, 1)?;
    let frame = traffic.frame(Stamp { queue: 1, sequence: 0 });
    let started = Instant::now();
    for _ in 0..FRAMES {
        sender.send(&frame)?;
    }
    sender.flush()?;
    Ok(FRAMES as f64 / started.elapsed().as_secs_f64())
}

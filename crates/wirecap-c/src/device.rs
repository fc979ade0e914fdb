//! The list of interfaces.
#![allow(unsafe_code)]

use std::ffi::c_int;

use wirecap::device::{Device, XdpSupport, devices};

use crate::abi::{DEVICE_LOOPBACK, DEVICE_RUNNING, DEVICE_UP, DEVICE_XDP, DeviceInfo};
use crate::arguments::SizedRooms;
use crate::failure::count;
use crate::names::lasting;

fn info(device: &Device) -> DeviceInfo {
    let flags = [
        (device.up, DEVICE_UP),
        (device.running, DEVICE_RUNNING),
        (device.is_loopback(), DEVICE_LOOPBACK),
        (device.xdp.as_ref().is_some_and(XdpSupport::is_native), DEVICE_XDP),
    ];
    DeviceInfo {
        name: lasting(&device.name).as_ptr(),
        driver: lasting(device.driver.as_deref().unwrap_or_default()).as_ptr(),
        index: device.index,
        flags: flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
        mtu: device.mtu,
        rx_queues: device.rx_queues,
        tx_queues: device.tx_queues,
        link_type: device.savefile_link_type().0.into(),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn wirecap_devices(list: *mut DeviceInfo, size: usize, room: usize) -> c_int {
    count(|| {
        // SAFETY: the header requires null or space for this many values of this size.
        let rooms = unsafe { SizedRooms::at(list, size, room, "the list of devices") }?;
        let devices = devices()?;
        rooms.fill(devices.iter().map(info));
        Ok(devices.len() as c_int)
    })
}

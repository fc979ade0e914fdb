#!/usr/bin/env python3
"""Writes the savefiles in this folder: small, of many kinds, and the same bytes each time.

They stand for recordings of other programs: link types, formats, byte orders, resolutions of time, tunnels, tags, fragments,
options, snapped packets, and files that are damaged or end early. Addresses are those of documentation (RFC 5737, RFC 3849).
"""

import os
import random
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
SECOND = 1_700_000_000
CHOICES = random.Random(1)

# Link-layer types (https://www.tcpdump.org/linktypes.html).
NULL, ETHERNET, PPP, RAW_BSD, PPP_HDLC, PPP_ETHER = 0, 1, 9, 12, 50, 51
RAW, CHDLC, WIFI, LOOP, SLL, RADIOTAP, PPI, IPV4, IPV6, SLL2 = 101, 104, 105, 108, 113, 127, 192, 228, 229, 276


# Packets, from the outside to the inside.

def checksum(data):
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def address(version, host):
    if version == 4:
        return bytes([192, 0, 2, host])
    return bytes.fromhex("20010db8000000000000000000000000")[:15] + bytes([host])


def transport(version, source, destination, protocol, header, place, payload):
    """A header with its checksum at `place`, and the payload."""
    length = len(header) + len(payload)
    pair = address(version, source) + address(version, destination)
    pseudo = pair + (struct.pack(">BBH", 0, protocol, length) if version == 4 else struct.pack(">II", length, protocol))
    value = checksum(pseudo + header + payload)
    return header[:place] + struct.pack(">H", value) + header[place + 2:] + payload


def tcp(version, source, destination, ports, sequence, acknowledged, flags, payload=b"", options=b""):
    offset = (20 + len(options)) // 4 << 4
    header = struct.pack(">HHIIBBHHH", *ports, sequence, acknowledged, offset, flags, 64240, 0, 0) + options
    return transport(version, source, destination, 6, header, 16, payload)


def udp(version, source, destination, ports, payload):
    header = struct.pack(">HHHH", *ports, 8 + len(payload), 0)
    return transport(version, source, destination, 17, header, 6, payload)


def ip4(source, destination, protocol, payload, options=b"", fragment=0, number=1):
    length = 20 + len(options) + len(payload)
    start = struct.pack(">BBHHHBB", 0x40 | (20 + len(options)) // 4, 0, length, number, fragment, 64, protocol)
    pair = address(4, source) + address(4, destination) + options
    return start + struct.pack(">H", checksum(start + b"\0\0" + pair)) + pair + payload


def ip6(source, destination, protocol, payload):
    start = struct.pack(">IHBB", 6 << 28, len(payload), protocol, 64)
    return start + address(6, source) + address(6, destination) + payload


def ip(version, source, destination, protocol, payload):
    return (ip4 if version == 4 else ip6)(source, destination, protocol, payload)


def mac(host):
    return bytes([2, 0, 0, 0, 0, host])


def ethernet(source, destination, ethertype, payload, tags=()):
    tags = b"".join(struct.pack(">HH", kind, number) for kind, number in tags)
    frame = mac(destination) + mac(source) + tags + struct.pack(">H", ethertype) + payload
    return frame + bytes(max(0, 60 - len(frame)))


def frame(version, source, destination, protocol, payload, tags=()):
    packet = ip(version, source, destination, protocol, payload)
    return ethernet(source, destination, 0x0800 if version == 4 else 0x86DD, packet, tags)


def text(length):
    return bytes(CHOICES.choice(b"abcdefghijklmnopqrstuvwxyz \n") for _ in range(length))


def conversation(version, client, server, port, bytes_each_way):
    """The IP packets of a TCP connection, from the first SYN to the last ACK."""
    ports = CHOICES.randrange(32768, 61000), port
    sent = {client: CHOICES.randrange(1 << 31), server: CHOICES.randrange(1 << 31)}

    def segment(source, flags, payload=b"", options=b""):
        destination = server if source == client else client
        pair = ports if source == client else ports[::-1]
        acknowledged = sent[destination] if flags & 0x10 else 0
        data = tcp(version, source, destination, pair, sent[source], acknowledged, flags, payload, options)
        sent[source] += len(payload) + (1 if flags & 3 else 0)
        return ip(version, source, destination, 6, data)

    maximum = bytes([2, 4, 5, 180])
    yield segment(client, 0x02, options=maximum)
    yield segment(server, 0x12, options=maximum)
    yield segment(client, 0x10)
    for length in bytes_each_way:
        yield segment(client, 0x18, text(CHOICES.randrange(20, 400)))
        while length > 0:
            part = min(length, 1440)
            yield segment(server, 0x18, text(part))
            yield segment(client, 0x10)
            length -= part
    for source in (client, server):
        yield segment(source, 0x11)
        yield segment(server if source == client else client, 0x10)


def interleaved(*parts):
    parts = [list(part) for part in parts]
    while any(parts):
        yield CHOICES.choice([part for part in parts if part]).pop(0)


def over_ethernet(packets, tags=()):
    for packet in packets:
        version = packet[0] >> 4
        source, destination = (packet[15], packet[19]) if version == 4 else (packet[23], packet[39])
        yield ethernet(source, destination, 0x0800 if version == 4 else 0x86DD, packet, tags)


def dns(version, client, server, number):
    name = b"".join(bytes([len(part)]) + part for part in (b"host%d" % number, b"example", b"org")) + b"\0"
    question = name + struct.pack(">HH", 1, 1)
    answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + bytes([192, 0, 2, number])
    ports = 40000 + number, 53
    ask = struct.pack(">HHHHHH", number, 0x0100, 1, 0, 0, 0) + question
    tell = struct.pack(">HHHHHH", number, 0x8180, 1, 1, 0, 0) + question + answer
    yield ip(version, client, server, 17, udp(version, client, server, ports, ask))
    yield ip(version, server, client, 17, udp(version, server, client, ports[::-1], tell))


def mixed(version):
    """IP packets of several connections and questions, in a random order."""
    web = [conversation(version, 1 + i, 100 + i % 2, 443 if i % 3 else 80, [3000, 700]) for i in range(3)]
    names = [dns(version, 1 + i, 53, 10 + i) for i in range(6)]
    return list(interleaved(*web, *names))


# Files.

def times(count, step=1_237_911):
    """Nanoseconds since 1970."""
    return [SECOND * 10**9 + number * step for number in range(count)]


def pcap(packets, link_type=ETHERNET, order="<", nano=False, snaplen=262144, at=None):
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    file = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, snaplen, link_type)
    for packet, nanos in zip(packets, at or times(len(packets))):
        seconds, rest = divmod(nanos, 10**9)
        captured = packet[:snaplen]
        lengths = len(captured), len(packet)
        file += struct.pack(order + "IIII", seconds, rest if nano else rest // 1000, *lengths) + captured
    return file


def padded(data):
    return data + bytes(-len(data) % 4)


def option(order, code, value):
    return struct.pack(order + "HH", code, len(value)) + padded(value)


def block(order, kind, body):
    length = struct.pack(order + "I", len(body) + 12)
    return struct.pack(order + "I", kind) + length + body + length


def section(order="<", length=-1, options=b""):
    return block(order, 0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, length) + options)


def interface(order="<", link_type=ETHERNET, snaplen=0, options=b""):
    return block(order, 1, struct.pack(order + "HHI", link_type, 0, snaplen) + options)


def enhanced(packet, ticks, order="<", number=0, options=b"", captured=None):
    data = packet[:captured]
    head = struct.pack(order + "IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(data), len(packet))
    return block(order, 6, head + padded(data) + options)


def simple(packet, order="<", snaplen=0):
    data = packet[:snaplen] if snaplen else packet
    return block(order, 3, struct.pack(order + "I", len(packet)) + padded(data))


def pcapng(packets, link_type=ETHERNET, order="<", resolution=6):
    """With times in units of 10 to the power of minus `resolution`."""
    end = option(order, 0, b"")
    options = option(order, 2, b"eth0") + option(order, 9, bytes([resolution])) + end
    file = section(order, options=option(order, 4, b"make.py") + end) + interface(order, link_type, 0, options)
    for packet, nanos in zip(packets, times(len(packets))):
        file += enhanced(packet, nanos // 10 ** (9 - resolution), order)
    return file


def write(name, data):
    with open(os.path.join(HERE, name), "wb") as file:
        file.write(data)


def ethernet_files():
    v4, v6 = list(over_ethernet(mixed(4))), list(over_ethernet(mixed(6)))
    write("tcp-udp.pcap", pcap(v4))
    write("tcp-udp-ip6.pcapng", pcapng(v6))
    write("both.pcapng", pcapng(list(interleaved(v4, v6)), resolution=9))
    write("snap-96.pcap", pcap(v4, snaplen=96))
    write("big-endian.pcap", pcap(v4, order=">"))
    write("nanoseconds.pcap", pcap(v4, nano=True))
    write("nanoseconds-big-endian.pcap", pcap(v6, order=">", nano=True))
    write("big-endian.pcapng", pcapng(v4, order=">"))
    write("out-of-order.pcap", pcap(v4, at=CHOICES.sample(times(len(v4)), len(v4))))
    write("after-2038.pcap", pcap(v4[:9], at=[nanos + (1 << 31) * 10**9 for nanos in times(9)]))
    write("vlan.pcap", pcap(list(over_ethernet(mixed(4), [(0x8100, 5)]))))
    write("qinq.pcapng", pcapng(list(over_ethernet(mixed(6), [(0x88A8, 100), (0x8100, 0x6005)]))))
    mpls = struct.pack(">I", 16 << 12 | 64) + struct.pack(">I", 17 << 12 | 1 << 8 | 64)
    write("mpls.pcap", pcap([ethernet(1, 2, 0x8847, mpls + packet) for packet in mixed(4)]))
    session = [struct.pack(">BBHHH", 0x11, 0, 7, len(packet) + 2, 0x21) + packet for packet in mixed(4)]
    write("pppoe.pcap", pcap([ethernet(1, 2, 0x8864, packet) for packet in session]))

    inner4, inner6 = mixed(4)[:8], mixed(6)[:8]
    vxlan = struct.pack(">II", 8 << 24, 7 << 8)
    tunnels = [ip6(9, 10, 4, packet) for packet in inner4] + [ip4(9, 10, 41, packet) for packet in inner6]
    tunnels += [ip4(9, 10, 4, packet) for packet in inner4]
    tunnels += [ip4(9, 10, 47, struct.pack(">HH", 0, 0x86DD) + packet) for packet in inner6]
    for packet in over_ethernet(inner4):
        tunnels.append(ip4(9, 10, 17, udp(4, 9, 10, (50000, 4789), vxlan + packet)))
    write("tunnels.pcapng", pcapng(list(over_ethernet(tunnels))))

    fragments = []
    for number in range(4):
        data = udp(4, 1, 2, (5000 + number, 6000), text(3000))
        for start in range(0, len(data), 1480):
            more = 0x2000 if start + 1480 < len(data) else 0
            part = data[start:start + 1480]
            fragments.append(ip4(1, 2, 17, part, fragment=more | start // 8, number=number))
        data = udp(6, 1, 2, (5000 + number, 6000), text(3000))
        for start in range(0, len(data), 1440):
            more = 1 if start + 1440 < len(data) else 0
            head = struct.pack(">BBHI", 17, 0, start | more, number)
            fragments.append(ip6(1, 2, 44, head + data[start:start + 1440]))
    write("fragments.pcap", pcap(list(over_ethernet(fragments))))

    alert, route = bytes([148, 4, 0, 0]), bytes([7, 7, 4, 0, 0, 0, 0, 0])
    special = []
    for options in (alert, route, alert + route):
        special.append(ip4(1, 2, 17, udp(4, 1, 2, (1000, 2000), text(30)), options))
    for chain in ((0,), (0, 60), (43, 60), (0, 43, 60)):
        payload, following = udp(6, 1, 2, (1000, 2000), text(30)), 17
        for header in reversed(chain):
            payload = bytes([following, 0, 1, 4, 0, 0, 0, 0]) + payload
            following = header
        special.append(ip6(1, 2, following, payload))
    special.append(ip4(1, 2, 132, struct.pack(">HHII", 2905, 2905, 7, 0) + text(20)))
    special.append(ip4(1, 2, 50, struct.pack(">II", 0x100, 1) + text(40)))
    special.append(ip4(1, 2, 2, bytes.fromhex("1600ee9b") + address(4, 1)))
    special.append(ip4(1, 2, 1, struct.pack(">BBHI", 3, 3, 0, 0) + ip4(2, 1, 17, udp(4, 2, 1, (1, 2), b""))))
    special.append(ip6(1, 2, 58, struct.pack(">BBHHH", 128, 0, 0, 1, 1) + text(20)))
    write("options.pcap", pcap(list(over_ethernet(special))))

    arp = struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1) + mac(1) + address(4, 1) + bytes(6) + address(4, 2)
    others = [ethernet(1, 255, 0x0806, arp), ethernet(1, 2, 0x88CC, text(40)), ethernet(1, 2, 0x888E, text(20))]
    others += [ethernet(1, 2, 38, b"\x42\x42\x03" + bytes(35)), ethernet(1, 2, 46, b"\xaa\xaa\x03" + text(43))]
    others += [v4[0][:14], v4[0][:33], v4[3][:41], v6[0][:53]]
    write("not-ip-and-short.pcap", pcap(others))
    jumbo = [frame(4, 1, 2, 17, udp(4, 1, 2, (9, 9), text(length))) for length in (8900, 1472, 8972, 20)]
    write("jumbo.pcap", pcap(jumbo))
    return v4, v6


def link_types():
    v4, v6 = mixed(4)[:24], mixed(6)[:24]
    both = list(interleaved(v4, v6))
    versions = {4: 0x0800, 6: 0x86DD}
    kinds = [(packet[0] >> 4, packet) for packet in both]
    family = {4: 2, 6: 24}
    write("raw.pcap", pcap(both, RAW))
    write("raw-12.pcap", pcap(both, RAW_BSD))
    write("ipv4.pcapng", pcapng(v4, IPV4))
    write("ipv6.pcapng", pcapng(v6, IPV6))
    write("null.pcap", pcap([struct.pack("<I", family[version]) + packet for version, packet in kinds], NULL))
    write("loop.pcap", pcap([struct.pack(">I", family[version]) + packet for version, packet in kinds], LOOP))
    protocols = {4: 0x0021, 6: 0x0057}
    ppp = [struct.pack(">H", protocols[version]) + packet for version, packet in kinds]
    write("ppp.pcap", pcap([b"\xff\x03" + packet for packet in ppp], PPP))
    write("ppp-hdlc.pcap", pcap([b"\xff\x03" + packet for packet in ppp], PPP_HDLC))
    session = [struct.pack(">BBHH", 0x11, 0, 7, len(packet)) + packet for packet in ppp]
    write("ppp-ether.pcap", pcap(session, PPP_ETHER))
    chdlc = [struct.pack(">BBH", 0x0F, 0, versions[version]) + packet for version, packet in kinds]
    write("chdlc.pcap", pcap(chdlc, CHDLC))
    sll = [struct.pack(">HHH8sH", number % 5, 1, 6, mac(1) + b"\0\0", versions[version]) + packet
           for number, (version, packet) in enumerate(kinds)]
    write("sll.pcap", pcap(sll, SLL))
    sll2 = [struct.pack(">HHIHBB8s", versions[version], 0, 3, 1, number % 5, 6, mac(1) + b"\0\0") + packet
            for number, (version, packet) in enumerate(kinds)]
    write("sll2.pcapng", pcapng(sll2, SLL2))
    wifi = [bytes.fromhex("08010000") + mac(1) + mac(2) + mac(3) + b"\x10\x00" + b"\xaa\xaa\x03\0\0\0"
            + struct.pack(">H", versions[version]) + packet for version, packet in kinds]
    write("wifi.pcap", pcap(wifi, WIFI))
    radiotap = bytes.fromhex("00000c000480000002000000")
    write("radiotap.pcap", pcap([radiotap + packet for packet in wifi], RADIOTAP))
    ppi = struct.pack("<BBHI", 0, 0, 8, WIFI)
    write("ppi.pcap", pcap([ppi + packet for packet in wifi], PPI))


def blocks(v4, v6):
    """pcapng files with what only some programs write."""
    for order, name in (("<", "little"), (">", "big")):
        end = option(order, 0, b"")
        file = section(order, options=option(order, 1, b"a comment") + option(order, 3, b"Linux") + end)
        file += interface(order, ETHERNET, 262144, option(order, 2, b"eth0") + option(order, 9, b"\x09") + end)
        # Units of 2^-20 s, and an offset of an hour.
        binary = option(order, 2, b"eth1") + option(order, 9, b"\x94") + option(order, 14, struct.pack(order + "q", 3600))
        file += interface(order, ETHERNET, 262144, binary + end)
        file += block(order, 4, struct.pack(order + "HH", 1, 13) + padded(address(4, 1) + b"host.org\0") + bytes(4))
        file += block(order, 10, struct.pack(order + "II", 0x544C534B, 4) + b"keys")
        for number, (packet, nanos) in enumerate(zip(v4[:20], times(20))):
            comment = option(order, 1, b"packet %d" % number) + option(order, 2, struct.pack(order + "I", 1 + number % 2))
            file += enhanced(packet, nanos, order, 0, comment + end)
            ticks = (nanos - 3600 * 10**9 << 20) // 10**9
            file += enhanced(v6[number], ticks, order, 1, captured=128)
        file += block(order, 0x0BAD, struct.pack(order + "I", 32473) + b"data")
        file += block(order, 0xF000, b"unknown.")
        counts = option(order, 4, struct.pack(order + "Q", 20)) + option(order, 5, struct.pack(order + "Q", 0))
        file += block(order, 5, struct.pack(order + "III", 0, 0, 0) + counts + end)
        write(f"blocks-{name}-endian.pcapng", file)
    file = section() + interface(snaplen=100)
    for packet in v4[:10]:
        file += simple(packet, snaplen=100)
    write("simple.pcapng", file)
    # The second section states its length.
    second = pcapng(v6[:10])
    head = len(section(options=option("<", 4, b"make.py") + option("<", 0, b"")))
    second = second[:16] + struct.pack("<q", len(second) - head) + second[24:]
    write("two-sections.pcapng", pcapng(v4[:10]) + second)
    obsolete = section() + interface()
    for packet, nanos in zip(v4[:10], times(10)):
        ticks = nanos // 1000
        head = struct.pack("<HHIIII", 0, 0, ticks >> 32, ticks & 0xFFFFFFFF, len(packet), len(packet))
        obsolete += block("<", 2, head + padded(packet))
    write("obsolete-blocks.pcapng", obsolete)


def damaged(v4):
    good, ng = pcap(v4[:20]), pcapng(v4[:20])
    write("empty.pcap", pcap([]))
    write("empty.pcapng", pcapng([]))
    write("ends-in-a-packet.pcap", good[:-30])
    write("ends-in-a-header.pcap", good + good[24:34])
    write("ends-in-a-block.pcapng", ng[:-30])
    write("ends-in-a-block-header.pcapng", ng + ng[-100:-94])
    write("ends-in-the-file-header.pcap", good[:20])
    write("endless-packet.pcap", good + struct.pack("<IIII", SECOND, 0, 1 << 30, 1 << 30) + bytes(100))
    write("zeros-at-the-end.pcap", good + bytes(64))
    lengths = len(ng) - 4
    write("two-lengths.pcapng", ng[:lengths] + struct.pack("<I", 1 << 20))
    unknown = block("<", 6, struct.pack("<IIIII", 7, 0, 0, 4, 4) + b"data")
    write("unknown-interface.pcapng", ng + unknown)


if __name__ == "__main__":
    v4, v6 = ethernet_files()
    link_types()
    blocks(v4, v6)
    damaged(v4)

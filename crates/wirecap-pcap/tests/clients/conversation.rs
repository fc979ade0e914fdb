//! The conversation of two hosts while clients listen: some packets of each protocol that a client
//! decodes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use wirecap_testbed::{Namespace, uninterrupted};

use crate::bed::{HERE, THERE};

/// No exchange takes this long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Requests of the other host over TCP, with the answers of this host.
const TALKS: [(u16, &[(&str, &str)]); 3] = [
    (
        80,
        &[(
            "GET /index.html HTTP/1.1\r\nHost: www.example.org\r\nUser-Agent: conversation/1.0\r\nAccept: */*\r\n\r\n",
            "HTTP/1.1 200 OK\r\nServer: here/1.0\r\nContent-Type: text/html\r\nContent-Length: 30\r\n\r\n\
             <html>all that was said</html>",
        )],
    ),
    (
        21,
        &[
            ("", "220 ready\r\n"),
            ("USER somebody\r\n", "331 password\r\n"),
            ("PASS anything\r\n", "230 welcome\r\n"),
            ("QUIT\r\n", "221 bye\r\n"),
        ],
    ),
    (9000, &[("first\n", "1\n"), ("second\n", "2\n"), ("third\n", "3\n")]),
];

const SIP: &str = "INVITE sip:there@10.9.0.2 SIP/2.0\r\nVia: SIP/2.0/UDP 10.9.0.1:5060;branch=z9hG4bK1\r\n\
                   From: <sip:here@10.9.0.1>;tag=1\r\nTo: <sip:there@10.9.0.2>\r\nCall-ID: 1@10.9.0.1\r\n\
                   CSeq: 1 INVITE\r\nContact: <sip:here@10.9.0.1>\r\nContent-Length: 0\r\n\r\n";

/// A DNS query for the address of wirecap.example, and the answer 198.18.0.1.
const QUERY: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07wirecap\x07example\x00\x00\x01\x00\x01";
const ANSWER: &[u8] =
    b"\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x07wirecap\x07example\x00\x00\x01\x00\x01\
                        \xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x3c\x00\x04\xc6\x12\x00\x01";

/// Holds the whole conversation.
pub(crate) fn hold(here: &Namespace, there: &Namespace) {
    ping(there);
    ask_by_udp(here, there, 53, QUERY, ANSWER);
    for number in 0..5 {
        let words = format!("word number {number}");
        ask_by_udp(here, there, 5000, words.as_bytes(), words.as_bytes());
    }
    ask_by_udp(here, there, 5060, SIP.as_bytes(), b"SIP/2.0 100 Trying\r\n\r\n");
    for (port, lines) in TALKS {
        talk(here, there, port, lines);
    }
    seek_address(there);
}

fn ping(there: &Namespace) {
    let mut command = Command::new("ping");
    command.args(["-c", "2", "-i", "0.2", "-W", "2", HERE]);
    let output = there.run_in(|| command.output()).unwrap().expect("ping is installed");
    assert!(output.status.success(), "the hosts do not reach each other");
}

/// A request and an answer, one datagram each.
fn ask_by_udp(here: &Namespace, there: &Namespace, port: u16, question: &[u8], answer: &[u8]) {
    let server = here.run_in(|| UdpSocket::bind((HERE, port))).unwrap().unwrap();
    let client = there.run_in(|| UdpSocket::bind((THERE, 40_000 + port % 1000))).unwrap().unwrap();
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut room = [0; 2048];
    client.send_to(question, (HERE, port)).unwrap();
    let (_, from) = uninterrupted(|| server.recv_from(&mut room)).unwrap();
    server.send_to(answer, from).unwrap();
    uninterrupted(|| client.recv_from(&mut room)).unwrap();
}

/// Lines in turn over a TCP connection.
fn talk(here: &Namespace, there: &Namespace, port: u16, lines: &[(&str, &str)]) {
    let listener = here.run_in(|| TcpListener::bind((HERE, port))).unwrap().unwrap();
    let mut client = there.run_in(|| TcpStream::connect((HERE, port))).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    for (question, answer) in lines {
        say(&mut client, &mut server, question);
        say(&mut server, &mut client, answer);
    }
    drop(client);
    let _ = server.read(&mut [0; 1]);
}

fn say(from: &mut TcpStream, to: &mut TcpStream, words: &str) {
    from.write_all(words.as_bytes()).unwrap();
    to.read_exact(&mut vec![0; words.len()]).unwrap();
}

/// A DHCPDISCOVER to the broadcast address.
fn seek_address(there: &Namespace) {
    let mut message = vec![0; 236];
    message[..8].copy_from_slice(&[1, 1, 6, 0, 1, 2, 3, 4]);
    message[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    message.extend([0x63, 0x82, 0x53, 0x63, 53, 1, 1, 12, 4]);
    message.extend(b"host\xff");
    message.resize(300, 0);
    let socket = there.run_in(|| UdpSocket::bind(("0.0.0.0", 68))).unwrap().unwrap();
    socket.set_broadcast(true).unwrap();
    socket.send_to(&message, ("255.255.255.255", 67)).unwrap();
}

//! The server as it listens: over real connections.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use surefoot_ui::server::{Options, Server};
use tokio::net::TcpStream;

async fn serve(address: IpAddr) -> (tempfile::TempDir, SocketAddr, String) {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::bind(Options {
        runs: folder.path().join("runs"),
        address,
        port: 0,
        names: Vec::new(),
        program: "surefoot".into(),
        folder: folder.path().to_owned(),
        data: Vec::new(),
        token_file: folder.path().join("token"),
        dev: None,
        system: folder.path().to_owned(),
        diagnose: || doctor::diagnose(platform::Machine::default()),
        dump: String::new,
    })
    .await
    .unwrap();
    let (address, url) = (server.address(), server.url());
    tokio::spawn(server.run(std::future::pending()));
    (folder, address, url)
}

async fn write(stream: &TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        stream.writable().await.unwrap();
        match stream.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Everything until the other end closes.
async fn read_all(stream: &TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        stream.readable().await.unwrap();
        match stream.try_read(&mut buffer) {
            Ok(0) => return String::from_utf8_lossy(&text).into_owned(),
            Ok(count) => text.extend(&buffer[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => return String::from_utf8_lossy(&text).into_owned(),
        }
    }
}

async fn ask(address: SocketAddr, host: &str, more: &str) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET /api/runs HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n{more}\r\n");
    write(&stream, request.as_bytes()).await;
    read_all(&stream).await
}

#[tokio::test]
async fn the_token_is_in_the_fragment_and_gives_access() {
    let (folder, address, url) = serve(Ipv4Addr::LOCALHOST.into()).await;
    assert!(address.ip().is_loopback());
    let token = std::fs::read_to_string(folder.path().join("token")).unwrap();
    let token = token.trim();
    assert_eq!(url, format!("http://{address}/#token={token}"));
    let bearer = format!("authorization: Bearer {token}\r\n");
    let host = address.to_string();
    let answer = ask(address, &host, &bearer).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let answer = ask(address, &host, "").await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let rebound = ask(address, "rebound.example", &bearer).await;
    assert!(rebound.starts_with("HTTP/1.1 403 "), "{rebound}");
    assert!(!rebound.contains(token) && !answer.contains(token));
}

#[tokio::test]
async fn the_token_is_required_on_all_addresses_too() {
    let (_folder, address, _) = serve(Ipv4Addr::UNSPECIFIED.into()).await;
    let called = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
    let answer = ask(called, &called.to_string(), "").await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

/// The clock of the test jumps to the next thing that is waited for.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_finish_its_request_is_disconnected() {
    let (_folder, address, _) = serve(Ipv4Addr::LOCALHOST.into()).await;
    let stream = TcpStream::connect(address).await.unwrap();
    write(&stream, b"GET / HTTP/1.1\r\nhost: 127").await;
    let answer = read_all(&stream).await;
    assert!(!answer.contains("200 OK"), "{answer}");
}

/// Who opens all the connections there may be and says nothing keeps nobody out.
#[tokio::test]
async fn connections_without_the_token_make_room() {
    let (folder, address, _) = serve(Ipv4Addr::LOCALHOST.into()).await;
    let token = std::fs::read_to_string(folder.path().join("token")).unwrap();
    let mut idle = Vec::new();
    for _ in 0..128 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let bearer = format!("authorization: Bearer {}\r\n", token.trim());
    let began = std::time::Instant::now();
    let answer = ask(address, &address.to_string(), &bearer).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // Without room it has to wait until the first of them is given up, which is after ten seconds.
    assert!(began.elapsed() < std::time::Duration::from_secs(8));
}

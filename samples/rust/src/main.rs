//! Writes every record to stderr, where the host logs it, and checkpoints each batch.
use std::io::{stdin, stdout, Result, Write};

use base64::{prelude::BASE64_STANDARD, Engine};
use serde_json::{from_str, json, Value};

fn send(message: Value) -> Result<()> {
    writeln!(stdout().lock(), "{message}")
}

/// None when the host has closed our stdin.
fn receive() -> Result<Option<Value>> {
    let mut line = String::new();
    let read = stdin().read_line(&mut line)?;
    Ok(if read == 0 { None } else { Some(from_str(&line)?) })
}

fn checkpoint() -> Result<()> {
    send(json!({"action": "checkpoint", "sequenceNumber": null, "subSequenceNumber": null}))?;
    if let Some(answer) = receive()?.filter(|answer| !answer["error"].is_null()) {
        // Nothing is lost by a refusal: the next checkpoint makes up for it.
        eprintln!("WARN checkpoint refused: {}", answer["error"]);
    }
    Ok(())
}

fn main() -> Result<()> {
    while let Some(message) = receive()? {
        match message["action"].as_str() {
            Some("processRecords") => {
                for record in message["records"].as_array().into_iter().flatten() {
                    let data = BASE64_STANDARD.decode(record["data"].as_str().unwrap_or("")).unwrap_or_default();
                    eprintln!("{} {}", record["partitionKey"], String::from_utf8_lossy(&data));
                }
                checkpoint()?;
            }
            Some("shardEnded" | "shutdownRequested") => checkpoint()?,
            _ => {}
        }
        send(json!({"action": "status", "responseFor": message["action"]}))?;
    }
    Ok(())
}

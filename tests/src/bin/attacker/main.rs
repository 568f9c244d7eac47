//! What a hostile user does, or a hostile program in a container. Each word is one attack; the scenario that calls it
//! looks at what became of the victims. A step that is refused is no failure of the attacker's: it says so and goes on.
#![forbid(unsafe_code)]

use std::path::Path;

use anyhow::{Context, bail};

mod bypass;
mod device;
mod fatbin;
mod flood;
mod http;
mod messages;
mod names;
mod page_server;
mod pages;
mod paths;
mod wire;

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["limit", socket] => pages::limit(Path::new(socket)),
        ["deliver", socket, bytes] => pages::deliver(Path::new(socket), number(bytes)?),
        ["forge", socket, count, pids @ ..] => pages::forge(Path::new(socket), number(count)?, pids),
        ["race-pages", rounds, seconds] => pages::race(number(rounds)?, number(seconds)?),
        ["swap", folder, name, victim, seconds] => {
            paths::swap(Path::new(folder), name, Path::new(victim), number(seconds)?)
        }
        ["churn", folder, victim, seconds, names @ ..] => {
            paths::churn(Path::new(folder), Path::new(victim), number(seconds)?, names)
        }
        ["shorten", folder, socket, device, rounds, seconds] => {
            let reach = device::Reach::new(Path::new(folder), Path::new(socket), device)?;
            reach.shorten(number(rounds)?, number(seconds)?)
        }
        ["forge-calls", count] => messages::forge(&messages::own_socket()?, number(count)?),
        ["redirect", other] => page_server::redirect(Path::new(other)),
        ["fault", looks, seconds] => page_server::fault(number(looks)?, number(seconds)?),
        ["steal", name, milliseconds] => page_server::steal(name, number(milliseconds)?),
        ["stuck", count] => page_server::stuck(number(count)?),
        ["connections", count, text] => flood::connections(number(count)?, text),
        ["silent", socket, count] => flood::silent(Path::new(socket), number(count)?),
        ["queue", count, bytes] => flood::queue(number(count)?, number(bytes)?),
        ["requests", count, method, path, body] => flood::requests(number(count)?, method, path, body),
        ["attend", name] => flood::attend(name),
        ["bypass", rounds, seconds] => bypass::by_the_dead(number(rounds)?, number(seconds)?),
        ["attach-by-the-dead", socket, rounds, seconds] => {
            bypass::attach_by_the_dead(Path::new(socket), number(rounds)?, number(seconds)?)
        }
        ["pass-connections", socket, count] => bypass::pass_connections(Path::new(socket), number(count)?),
        ["fatbin", files, mebibytes] => fatbin::load(number(files)?, number(mebibytes)?),
        ["squat", uuid] => names::squat(uuid),
        ["impostor", folder] => names::impostor(Path::new(folder)),
        ["http", method, path, body] => {
            let (status, text) = http::request(method, path, body)?;
            println!("{status} {text}");
            Ok(())
        }
        _ => bail!("The attacker does not know {words:?}"),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> anyhow::Result<T>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    text.parse().with_context(|| format!("{text:?} is no number"))
}

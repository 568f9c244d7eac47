//! Functions that the device provides: `vprintf` and the failed assertion.

use super::ctx::{Ctx, Stop};
use super::functions::{Value, collect, deliver};
use super::memory::byte;
use crate::inst::{Flow, Inst};

/// The longest format, string argument or message we follow.
const MAX_TEXT: usize = 8 << 10;

/// A NUL-terminated string at a generic address; cut where memory ends.
fn text(c: &Ctx, address: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(byte) = byte(c, address.wrapping_add(out.len() as u64)) {
        if byte == 0 || out.len() >= MAX_TEXT {
            break;
        }
        out.push(byte);
    }
    out
}

/// `vprintf(format, arguments)`: each argument lies aligned to its size in the buffer.
pub(crate) fn vprintf(c: &mut Ctx, i: &Inst) -> Flow {
    let call = &c.launch().code().calls[i.aux as usize];
    let arguments = collect(c, &call.arguments);
    let mut given = [0u32; 32];
    for lane in c.active() {
        let (Some(format), Some(buffer)) = (arguments.first(), arguments.get(1)) else {
            continue;
        };
        let format = text(c, format.word(lane));
        let (line, count) = render(c, &format, buffer.word(lane));
        given[lane] = count;
        (c.launch().print)(&line);
    }
    let results = c.launch().code().calls[i.aux as usize].results.clone();
    deliver(c, &results, &[Value::of_words(&given)]);
    Flow::Next
}

/// Reads an argument of `size` bytes.
fn argument(c: &Ctx, buffer: u64, at: &mut u64, size: u64) -> u64 {
    *at = at.next_multiple_of(size);
    let mut word = 0;
    for n in 0..size {
        word |= u64::from(byte(c, buffer.wrapping_add(*at + n)).unwrap_or(0)) << (8 * n);
    }
    *at += size;
    word
}

fn render(c: &Ctx, format: &[u8], buffer: u64) -> (Vec<u8>, u32) {
    let mut out = Vec::new();
    let mut at = 0u64;
    let mut count = 0;
    let mut rest = format;
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            out.push(*first);
            continue;
        }
        if rest.first() == Some(&b'%') {
            out.push(b'%');
            rest = &rest[1..];
            continue;
        }
        let mut spec = Spec::default();
        rest = spec.read(rest, |size| argument(c, buffer, &mut at, size));
        let Some((kind, tail)) = rest.split_first() else {
            break;
        };
        rest = tail;
        count += 1;
        match kind {
            b'd' | b'i' => {
                let raw = argument(c, buffer, &mut at, spec.size);
                let value = if spec.size == 8 {
                    raw as i64
                } else {
                    i64::from(raw as i32)
                };
                spec.number(&mut out, value < 0, &value.unsigned_abs().to_string());
            }
            b'u' | b'x' | b'X' | b'o' => {
                let raw = argument(c, buffer, &mut at, spec.size);
                let (digits, prefix) = match kind {
                    b'u' => (raw.to_string(), ""),
                    b'x' => (format!("{raw:x}"), "0x"),
                    b'X' => (format!("{raw:X}"), "0X"),
                    _ => (format!("{raw:o}"), "0"),
                };
                let digits = if spec.alternate && raw != 0 {
                    format!("{prefix}{digits}")
                } else {
                    digits
                };
                spec.number(&mut out, false, &digits);
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(argument(c, buffer, &mut at, 8));
                let body = float(value.abs(), *kind, spec.precision);
                spec.precision = None;
                spec.zero &= value.is_finite();
                spec.number(&mut out, value.is_sign_negative() && !value.is_nan(), &body);
            }
            b'c' => {
                let raw = argument(c, buffer, &mut at, 4);
                spec.pad(&mut out, &[raw as u8]);
            }
            b's' => {
                let mut string = text(c, argument(c, buffer, &mut at, 8));
                string.truncate(spec.precision.unwrap_or(usize::MAX));
                spec.pad(&mut out, &string);
            }
            b'p' => {
                let raw = argument(c, buffer, &mut at, 8);
                spec.pad(&mut out, format!("0x{raw:x}").as_bytes());
            }
            other => {
                out.push(b'%');
                out.push(*other);
            }
        }
    }
    (out, count)
}

/// A conversion's flags, width and precision.
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Bytes of an integer argument.
    size: u64,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            left: false,
            plus: false,
            space: false,
            alternate: false,
            zero: false,
            width: 0,
            precision: None,
            size: 4,
        }
    }
}

impl Spec {
    fn read<'t>(&mut self, mut rest: &'t [u8], mut argument: impl FnMut(u64) -> u64) -> &'t [u8] {
        while let Some((flag, tail)) = rest.split_first() {
            match flag {
                b'-' => self.left = true,
                b'+' => self.plus = true,
                b' ' => self.space = true,
                b'#' => self.alternate = true,
                b'0' => self.zero = true,
                _ => break,
            }
            rest = tail;
        }
        let mut count = |rest: &mut &'t [u8]| -> usize {
            if let Some((b'*', tail)) = rest.split_first() {
                *rest = tail;
                return (argument(4) as u32 as usize).min(1024);
            }
            let mut value = 0usize;
            while let Some((digit @ b'0'..=b'9', tail)) = rest.split_first() {
                value = (value * 10 + usize::from(digit - b'0')).min(1024);
                *rest = tail;
            }
            value
        };
        self.width = count(&mut rest);
        if let Some((b'.', tail)) = rest.split_first() {
            rest = tail;
            self.precision = Some(count(&mut rest));
        }
        while let Some((length @ (b'l' | b'h' | b'z' | b'j' | b't' | b'q'), tail)) = rest.split_first() {
            if *length != b'h' {
                self.size = 8;
            }
            rest = tail;
        }
        rest
    }

    fn pad(&self, out: &mut Vec<u8>, body: &[u8]) {
        let fill = self.width.saturating_sub(body.len());
        if !self.left {
            out.extend(std::iter::repeat_n(b' ', fill));
        }
        out.extend_from_slice(body);
        if self.left {
            out.extend(std::iter::repeat_n(b' ', fill));
        }
    }

    fn number(&self, out: &mut Vec<u8>, negative: bool, digits: &str) {
        let sign = match (negative, self.plus, self.space) {
            (true, _, _) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        };
        let least = match self.precision {
            Some(precision) => precision,
            None if self.zero && !self.left => self.width.saturating_sub(sign.len()),
            None => 0,
        };
        let zeros = "0".repeat(least.saturating_sub(digits.len()));
        self.pad(out, format!("{sign}{zeros}{digits}").as_bytes());
    }
}

/// The digits of a non-negative number, as C prints them.
fn float(value: f64, kind: u8, precision: Option<usize>) -> String {
    let upper = kind.is_ascii_uppercase();
    if !value.is_finite() {
        let word = if value.is_nan() { "nan" } else { "inf" };
        return if upper { word.to_uppercase() } else { word.into() };
    }
    let exponent = |text: String| {
        // Rust writes 1.5e3, C writes 1.5e+03.
        let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
        let power: i32 = power.parse().unwrap_or(0);
        let sign = if power < 0 { '-' } else { '+' };
        format!("{digits}e{sign}{:02}", power.abs())
    };
    let places = precision.unwrap_or(6).min(512);
    let text = match kind.to_ascii_lowercase() {
        b'f' => format!("{value:.places$}"),
        b'e' => exponent(format!("{value:.places$e}")),
        b'a' => hexadecimal(value),
        _ => {
            let digits = places.max(1);
            let scientific = format!("{value:.*e}", digits - 1);
            let power: i32 = scientific
                .split_once('e')
                .and_then(|(_, p)| p.parse().ok())
                .unwrap_or(0);
            let trim = |text: String| {
                if text.contains('.') {
                    text.trim_end_matches('0').trim_end_matches('.').to_owned()
                } else {
                    text
                }
            };
            if power < -4 || power >= digits as i32 {
                let (mantissa, _) = scientific.split_once('e').unwrap_or((&scientific, ""));
                exponent(format!("{}e{power}", trim(mantissa.to_owned())))
            } else {
                trim(format!("{value:.*}", (digits as i32 - 1 - power).max(0) as usize))
            }
        }
    };
    if upper { text.to_uppercase() } else { text }
}

/// `%a`.
fn hexadecimal(value: f64) -> String {
    if value == 0.0 {
        return "0x0p+0".into();
    }
    let bits = value.to_bits();
    let (biased, fraction) = ((bits >> 52) as i32, bits & ((1 << 52) - 1));
    let (lead, power) = if biased == 0 {
        (0, -1022)
    } else {
        (1, biased - 1023)
    };
    let digits = format!("{fraction:013x}");
    let digits = digits.trim_end_matches('0');
    let point = if digits.is_empty() { "" } else { "." };
    format!("0x{lead}{point}{digits}p{power:+}")
}

/// `__assertfail(message, file, line, function, char_size)`: a line for each thread, as hardware prints it, and the end
/// of the launch.
pub(crate) fn assert_fail(c: &mut Ctx, i: &Inst) -> Flow {
    let call = &c.launch().code().calls[i.aux as usize];
    let arguments = collect(c, &call.arguments);
    let [bx, by, bz] = c.ctaid;
    let [width, height, _] = c.launch().block;
    for lane in c.active() {
        let word = |n: usize| arguments.get(n).map_or(0, |v| v.word(lane));
        let string = |n: usize| String::from_utf8_lossy(&text(c, word(n))).into_owned();
        let thread = c.warp * 32 + lane as u32;
        let [x, y, z] = [thread % width, thread / width % height, thread / width / height];
        let line = format!(
            "{}:{}: {}: block: [{bx},{by},{bz}], thread: [{x},{y},{z}] Assertion `{}` failed.\n",
            string(1),
            word(2) as u32,
            string(3),
            string(0)
        );
        (c.launch().print)(line.as_bytes());
    }
    c.fault = Some(Stop::Assert);
    Flow::Fault
}

#[cfg(test)]
mod tests {
    use super::float;

    #[test]
    fn floats_print_as_in_c() {
        assert_eq!(float(1.5, b'f', None), "1.500000");
        assert_eq!(float(1234.5, b'e', Some(2)), "1.23e+03");
        assert_eq!(float(0.0001, b'g', None), "0.0001");
        assert_eq!(float(1e-5, b'g', None), "1e-05");
        assert_eq!(float(100_000.0, b'g', None), "100000");
        assert_eq!(float(1e6, b'g', None), "1e+06");
        assert_eq!(float(1.0, b'a', None), "0x1p+0");
        assert_eq!(float(f64::INFINITY, b'F', None), "INF");
    }
}

//! Random programs: nested branches and loops, breaks, continues, early exits. Each lane is compared with an
//! interpreter.

use std::fmt::Write;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

use crate::probe::module;
use crate::support::{Buffer, Loaded};

/// A statement over four variables.
#[derive(Clone, Debug)]
enum Statement {
    /// Variable, operation, operands.
    Set(usize, usize, usize, usize),
    /// Both arms, taken by whether the first variable lies below the second.
    If(usize, usize, Vec<Statement>, Vec<Statement>),
    /// As often as a variable's low three bits say.
    Repeat(usize, Vec<Statement>),
    /// Leaves the innermost loop (or the program, outside of one) if the first variable lies below the second.
    Break(usize, usize),
    /// On to the loop's next round, likewise.
    Continue(usize, usize),
    /// The thread ends here, its result unwritten, if the variable's low four bits are zero.
    Exit(usize),
}

use Statement::*;

/// How PTX writes an operation, and what it does.
type Operation = (&'static str, fn(u32, u32) -> u32);

const OPERATIONS: [Operation; 5] = [
    ("add.u32", u32::wrapping_add),
    ("xor.b32", |a, b| a ^ b),
    ("mul.lo.u32", u32::wrapping_mul),
    ("shr.u32", |a, b| a.checked_shr(b).unwrap_or(0)),
    ("max.s32", |a, b| (a as i32).max(b as i32) as u32),
];

/// Why a list of statements ended.
#[derive(PartialEq)]
enum Flow {
    On,
    Break,
    Continue,
    Exit,
}

fn interpret(program: &[Statement], v: &mut [u32; 4]) -> Flow {
    for statement in program {
        let flow = match statement {
            Set(d, operation, a, b) => {
                v[*d] = OPERATIONS[*operation].1(v[*a], v[*b]);
                Flow::On
            }
            If(a, b, then, otherwise) => interpret(if v[*a] < v[*b] { then } else { otherwise }, v),
            Repeat(count, body) => {
                let mut flow = Flow::On;
                for _ in 0..v[*count] & 7 {
                    match interpret(body, v) {
                        Flow::Break => break,
                        Flow::Exit => flow = Flow::Exit,
                        _ => continue,
                    }
                    break;
                }
                flow
            }
            Break(a, b) if v[*a] < v[*b] => Flow::Break,
            Continue(a, b) if v[*a] < v[*b] => Flow::Continue,
            Exit(a) if v[*a] & 15 == 0 => Flow::Exit,
            _ => Flow::On,
        };
        if flow != Flow::On {
            return flow;
        }
    }
    Flow::On
}

/// Writes `program`; `leave` and `next` are where Break and Continue go.
fn emit(program: &[Statement], text: &mut String, labels: &mut u32, [leave, next]: [&str; 2]) {
    for statement in program {
        *labels += 1;
        let label = *labels;
        match statement {
            Set(d, operation, a, b) => {
                let name = OPERATIONS[*operation].0;
                writeln!(text, " {name} %v{d}, %v{a}, %v{b};").unwrap();
            }
            If(a, b, then, otherwise) => {
                writeln!(text, " setp.lt.u32 %p, %v{a}, %v{b};\n @!%p bra E{label};").unwrap();
                emit(then, text, labels, [leave, next]);
                writeln!(text, " bra J{label};\nE{label}:").unwrap();
                emit(otherwise, text, labels, [leave, next]);
                writeln!(text, "J{label}:").unwrap();
            }
            Repeat(count, body) => {
                let (out, again) = (format!("O{label}"), format!("A{label}"));
                writeln!(text, " .reg .b32 %c{label};\n and.b32 %c{label}, %v{count}, 7;").unwrap();
                writeln!(text, "{again}:\n setp.eq.u32 %p, %c{label}, 0;\n @%p bra {out};").unwrap();
                writeln!(text, " sub.u32 %c{label}, %c{label}, 1;").unwrap();
                emit(body, text, labels, [&out, &again]);
                writeln!(text, " bra {again};\n{out}:").unwrap();
            }
            Break(a, b) => writeln!(text, " setp.lt.u32 %p, %v{a}, %v{b};\n @%p bra {leave};").unwrap(),
            Continue(a, b) => writeln!(text, " setp.lt.u32 %p, %v{a}, %v{b};\n @%p bra {next};").unwrap(),
            Exit(a) => writeln!(
                text,
                " and.b32 %k, %v{a}, 15;\n setp.eq.u32 %p, %k, 0;\n @%p exit;"
            )
            .unwrap(),
        }
    }
}

fn statements() -> impl Strategy<Value = Vec<Statement>> {
    let v = || 0..4usize;
    let leaf = prop_oneof![
        6 => (v(), 0..OPERATIONS.len(), v(), v()).prop_map(|(d, operation, a, b)| Set(d, operation, a, b)),
        2 => (v(), v()).prop_map(|(a, b)| Break(a, b)),
        2 => (v(), v()).prop_map(|(a, b)| Continue(a, b)),
        1 => v().prop_map(Exit),
    ];
    let statement = leaf.prop_recursive(4, 40, 5, move |inner| {
        let list = || proptest::collection::vec(inner.clone(), 0..5);
        prop_oneof![
            (v(), v(), list(), list()).prop_map(|(a, b, then, otherwise)| If(a, b, then, otherwise)),
            (v(), list()).prop_map(|(count, body)| Repeat(count, body)),
        ]
    });
    proptest::collection::vec(statement, 1..8)
}

fn check(program: &[Statement]) -> Result<(), TestCaseError> {
    let mut body = String::from(
        ".reg .b32 %v<4>;\n mov.u32 %v0, %i;\n mul.lo.u32 %v1, %i, 0x9e3779b1;\n and.b32 %v2, %t, 5;\n mov.u32 %v3, 40;\n",
    );
    emit(program, &mut body, &mut 0, ["END", "END"]);
    body += "END:\n xor.b32 %r, %v0, %v1;\n mad.lo.u32 %r, %v2, 31, %r;\n mad.lo.u32 %r, %v3, 977, %r;\n or.b32 %r, %r, 1;";
    let text = module(&body);
    let (blocks, threads) = (2, 80);
    let out = Buffer::zeroed((blocks * threads * 4) as usize);
    let input = Buffer::zeroed(4);
    let loaded = Loaded::new(&text);
    let run = loaded
        .kernel("probe")
        .grid(blocks)
        .block(threads)
        .buffer(&out)
        .buffer(&input);
    run.end()
        .map_err(|fault| TestCaseError::fail(format!("{fault}\n{text}")))?;
    for (i, got) in out.u32s().into_iter().enumerate() {
        let (i, t) = (i as u32, i as u32 % threads);
        let mut v = [i, i.wrapping_mul(0x9e37_79b1), t & 5, 40];
        let want = match interpret(program, &mut v) {
            Flow::Exit => 0,
            _ => {
                (v[0] ^ v[1])
                    .wrapping_add(v[2].wrapping_mul(31))
                    .wrapping_add(v[3].wrapping_mul(977))
                    | 1
            }
        };
        prop_assert_eq!(got, want, "thread {}\n{}", i, text);
    }
    Ok(())
}

/// The same programs every run, unless the environment asks for more or others.
#[test]
fn random_programs() {
    let mut config = Config {
        failure_persistence: None,
        ..Config::default()
    };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 300;
    }
    if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        config.rng_seed = RngSeed::Fixed(1);
    }
    if let Err(wrong) = TestRunner::new(config).run(&statements(), |program| check(&program)) {
        panic!("{wrong}");
    }
}

//! One instruction in a kernel of its own: operands come from memory, results go back, a host model judges each lane.

use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestRunner};

use crate::record::record;
use crate::support::{Buffer, Loaded};
use crate::types::Ty;
use crate::want::Want;

/// What a result register holds where the instruction was guarded off.
const UNTOUCHED: u64 = 0x5a5a_5a5a_5a5a_5a5a;

/// An instruction (or a short chain of them) under test. In `text`, `{d}` and `{e}` are its results, `{a}`, `{b}`,
/// `{c}` and `{f}` its operands, `{g}` the place of a guard; a text without `{g}` is guarded at its beginning.
pub struct Instruction {
    text: String,
    results: Vec<Ty>,
    operands: Vec<Ty>,
    literal: bool,
}

/// How the operands reach the instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Plain,
    /// Lanes whose bit (by lane number) is clear are guarded off.
    Guarded(u32),
    /// The result's register is the first operand's.
    Aliased,
    /// The last operand is a literal: the first lane's.
    Literal,
    /// All operands are literals.
    Literals,
}

/// An instruction without `.text` options: the last operand may also be a literal.
pub fn instruction(text: impl Into<String>, results: &[Ty], operands: &[Ty]) -> Instruction {
    Instruction {
        text: text.into(),
        results: results.to_vec(),
        operands: operands.to_vec(),
        literal: true,
    }
}

impl Instruction {
    /// Operands only ever come from registers.
    pub fn registers_only(mut self) -> Self {
        self.literal = false;
        self
    }

    /// Judges the one result over all pairs of special values and over random ones.
    pub fn check(self, model: impl Fn(&[u64]) -> Want) {
        self.check_all(|operands| vec![model(operands)]);
    }

    /// As [`check`](Self::check), for results that are plain bits.
    pub fn bits(self, model: impl Fn(&[u64]) -> u64) {
        self.check(|operands| Want::Bits(model(operands)));
    }

    /// Judges every result.
    pub fn check_all(self, model: impl Fn(&[u64]) -> Vec<Want>) {
        for lanes in self.crossed().chunks(4096) {
            if let Err(wrong) = self.trial(Shape::Plain, lanes, &model) {
                panic!("{wrong}");
            }
        }
        let mut runner = TestRunner::new(self.config());
        let lanes = proptest::collection::vec(self.lane(), 1..100);
        let shape = self.shape();
        let outcome = runner.run(&(shape, lanes), |(shape, lanes)| {
            self.trial(shape, &lanes, &model).map_err(TestCaseError::fail)
        });
        if let Err(wrong) = outcome {
            panic!("{wrong}");
        }
    }

    /// The same trials every run, unless `PROPTEST_CASES` or `PROPTEST_RNG_SEED` ask for others.
    fn config(&self) -> Config {
        let mut config = Config {
            failure_persistence: None,
            ..Config::default()
        };
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = 6;
        }
        if std::env::var_os("PROPTEST_RNG_SEED").is_none() {
            let mut hasher = DefaultHasher::new();
            self.text.hash(&mut hasher);
            config.rng_seed = RngSeed::Fixed(hasher.finish());
        }
        config
    }

    /// Every combination of special values, thinned (from three operands on) to a few thousand lanes.
    fn crossed(&self) -> Vec<Vec<u64>> {
        let mut lanes = vec![Vec::new()];
        for ty in &self.operands {
            lanes = lanes
                .iter()
                .flat_map(|lane: &Vec<u64>| {
                    ty.special()
                        .into_iter()
                        .map(move |v| [lane.as_slice(), &[v]].concat())
                })
                .collect();
            // A step that shares no factor with the counts of specials keeps all of them in the sample.
            let step = lanes.len() / 5000 + 1;
            lanes = lanes
                .into_iter()
                .step_by(if step > 1 { step | 1 } else { 1 })
                .collect();
        }
        lanes
    }

    fn lane(&self) -> impl Strategy<Value = Vec<u64>> + use<> {
        self.operands.iter().map(|ty| operand(*ty)).collect::<Vec<_>>()
    }

    fn shape(&self) -> BoxedStrategy<Shape> {
        let mut shapes = vec![Just(Shape::Plain).boxed()];
        // A text with guards of its own has no place for another.
        if !self.text.contains('@') {
            shapes.push(any::<u32>().prop_map(Shape::Guarded).boxed());
        }
        // In a chain a first result in an operand's place would change what follows.
        let single = self.text.matches(';').count() == 1;
        if single && self.operands.first() == self.results.first() && self.results[0] != Ty::Pred {
            shapes.push(Just(Shape::Aliased).boxed());
        }
        if self.literal && !self.operands.is_empty() {
            shapes.push(Just(Shape::Literal).boxed());
            if !self.operands.contains(&Ty::Pred) {
                shapes.push(Just(Shape::Literals).boxed());
            }
        }
        proptest::strategy::Union::new(shapes).boxed()
    }

    /// Runs `lanes` once and compares; the message says which lane went wrong and how.
    fn trial(
        &self,
        shape: Shape,
        lanes: &[Vec<u64>],
        model: &impl Fn(&[u64]) -> Vec<Want>,
    ) -> Result<(), String> {
        let text = self.kernel(shape, &lanes[0]);
        let loaded = Loaded::new(&text);
        let inputs: Vec<Buffer> = (0..self.operands.len()).map(|k| self.input(k, lanes)).collect();
        let outputs: Vec<Buffer> = self
            .results
            .iter()
            .map(|_| Buffer::zeroed(lanes.len() * 8))
            .collect();
        let mut run = loaded
            .kernel("probe")
            .grid(lanes.len().div_ceil(96) as u32)
            .block(96)
            .u32(lanes.len() as u32);
        for buffer in inputs.iter().chain(&outputs) {
            run = run.buffer(buffer);
        }
        run.end().map_err(|fault| format!("{fault}\n{text}"))?;
        let outputs: Vec<Vec<u64>> = outputs.iter().map(Buffer::u64s).collect();
        if shape == Shape::Plain {
            let types: Vec<String> = self.results.iter().map(|ty| format!("{ty:?}")).collect();
            record(&self.text, &text, lanes, &types, &outputs, model);
        }
        for (at, lane) in lanes.iter().enumerate() {
            let mut lane = lane.clone();
            match shape {
                Shape::Literals => lane.clone_from(&lanes[0]),
                Shape::Literal => *lane.last_mut().unwrap() = *lanes[0].last().unwrap(),
                _ => {}
            }
            let off = matches!(shape, Shape::Guarded(mask) if mask >> (at % 32) & 1 == 0);
            let wants = if off { self.untouched() } else { model(&lane) };
            for (k, want) in wants.into_iter().enumerate() {
                let got = outputs[k][at];
                if !want.allows(self.results[k], got) {
                    return Err(format!(
                        "{} ({shape:?}) lane {at}: operands {lane:x?}, result {k} wanted {want:x?}, got {got:x}",
                        self.text
                    ));
                }
            }
        }
        Ok(())
    }

    fn untouched(&self) -> Vec<Want> {
        let left = |ty: &Ty| {
            if *ty == Ty::Pred {
                Want::Bits(0)
            } else {
                Want::Bits(UNTOUCHED & ty.mask())
            }
        };
        self.results.iter().map(left).collect()
    }

    fn input(&self, k: usize, lanes: &[Vec<u64>]) -> Buffer {
        Buffer::of_u64(&lanes.iter().map(|lane| lane[k]).collect::<Vec<_>>())
    }

    /// The kernel: 8 bytes per lane in every buffer, whatever the type.
    fn kernel(&self, shape: Shape, first: &[u64]) -> String {
        let operands = ["a", "b", "c", "f"];
        let results = ["d", "e"];
        let mut head = String::from(
            ".version 8.5\n.target sm_90\n.address_size 64\n.visible .entry probe(.param .u32 n",
        );
        let mut load = String::new();
        let mut store = String::new();
        let mut declare = String::new();
        for (k, ty) in self.operands.iter().enumerate() {
            let name = operands[k];
            let (register, memory) = (ty.register(), ty.memory());
            write!(head, ",\n .param .u64 p{name}").unwrap();
            writeln!(declare, " .reg .{register} %{name}; .reg .b64 %p{name};").unwrap();
            writeln!(
                load,
                " ld.param.u64 %p{name}, [p{name}];\n add.s64 %p{name}, %p{name}, %at;"
            )
            .unwrap();
            if *ty == Ty::Pred {
                writeln!(
                    load,
                    " ld.global.u32 %word, [%p{name}];\n setp.ne.u32 %{name}, %word, 0;"
                )
                .unwrap();
            } else {
                writeln!(load, " ld.global.{memory} %{name}, [%p{name}];").unwrap();
            }
        }
        for (k, ty) in self.results.iter().enumerate() {
            let name = if shape == Shape::Aliased && k == 0 {
                "a"
            } else {
                results[k]
            };
            let slot = results[k];
            let (register, memory) = (ty.register(), ty.memory());
            write!(head, ",\n .param .u64 p{slot}").unwrap();
            writeln!(declare, " .reg .{register} %{slot}; .reg .b64 %p{slot};").unwrap();
            writeln!(
                store,
                " ld.param.u64 %p{slot}, [p{slot}];\n add.s64 %p{slot}, %p{slot}, %at;"
            )
            .unwrap();
            if *ty == Ty::Pred {
                writeln!(load, " setp.ne.u32 %{slot}, 0, 0;").unwrap();
                writeln!(
                    store,
                    " selp.u32 %word, 1, 0, %{name};\n st.global.u32 [%p{slot}], %word;"
                )
                .unwrap();
            } else {
                let size = register.trim_start_matches(char::is_alphabetic);
                let literal = match *ty {
                    Ty::F32 | Ty::F64 => ty.literal(UNTOUCHED & ty.mask()),
                    _ => format!(
                        "0x{:x}",
                        UNTOUCHED & (u64::MAX >> (64 - size.parse::<u32>().unwrap()))
                    ),
                };
                let mov = if register.starts_with('f') {
                    register.to_string()
                } else {
                    format!("b{size}")
                };
                writeln!(load, " mov.{mov} %{slot}, {literal};").unwrap();
                writeln!(store, " st.global.{memory} [%p{slot}], %{name};").unwrap();
            }
        }
        let guard = match shape {
            Shape::Guarded(mask) => {
                writeln!(
                    load,
                    " shr.u32 %word, {mask:#x}, %lane;\n and.b32 %word, %word, 1;"
                )
                .unwrap();
                writeln!(load, " setp.eq.u32 %guard, %word, 1;").unwrap();
                "@%guard "
            }
            _ => "",
        };
        let mut body = match self.text.contains("{g}") {
            true => self.text.replace("{g}", guard),
            false => format!("{guard}{}", self.text),
        };
        for (k, name) in operands.iter().enumerate().take(self.operands.len()) {
            let literal = match shape {
                Shape::Literals => true,
                Shape::Literal => k + 1 == self.operands.len(),
                _ => false,
            };
            // A predicate has no literal.
            let by = if literal && self.operands[k] != Ty::Pred {
                self.operands[k].literal(first[k])
            } else {
                format!("%{name}")
            };
            body = body.replace(&format!("{{{name}}}"), &by);
        }
        body = body
            .replace("{d}", if shape == Shape::Aliased { "%a" } else { "%d" })
            .replace("{e}", "%e");
        format!(
            "{head})\n{{\n .reg .pred %done, %guard; .reg .b32 %n, %i, %lane, %word; .reg .b64 %at;\n{declare}\
             \n mov.u32 %i, %ctaid.x;\n mov.u32 %lane, %tid.x;\n mad.lo.s32 %i, %i, 96, %lane;\
             \n ld.param.u32 %n, [n];\n setp.ge.u32 %done, %i, %n;\n @%done bra DONE;\
             \n mul.wide.u32 %at, %i, 8;\n and.b32 %lane, %lane, 31;\n{load} {body}\n{store}DONE:\n ret;\n}}\n"
        )
    }
}

/// Special values, any bits, and small numbers, in that order of shrinking.
fn operand(ty: Ty) -> BoxedStrategy<u64> {
    let special = proptest::sample::select(ty.special());
    let mask = ty.mask();
    match ty {
        Ty::Pred => special.boxed(),
        Ty::F32 => {
            prop_oneof![2 => special, 3 => any::<u32>().prop_map(u64::from), 3 => moderate_f32()].boxed()
        }
        Ty::F64 => prop_oneof![2 => special, 3 => any::<u64>(), 3 => moderate_f64()].boxed(),
        _ => prop_oneof![1 => special, 3 => any::<u64>().prop_map(move |v| v & mask), 1 => 0u64..70].boxed(),
    }
}

/// Floats near one, where sums cancel and products neither overflow nor vanish.
fn moderate_f32() -> impl Strategy<Value = u64> {
    (any::<u32>(), 100u32..156).prop_map(|(bits, exponent)| u64::from(bits & 0x807f_ffff | exponent << 23))
}

fn moderate_f64() -> impl Strategy<Value = u64> {
    (any::<u64>(), 980u64..1070).prop_map(|(bits, exponent)| bits & 0x800f_ffff_ffff_ffff | exponent << 52)
}

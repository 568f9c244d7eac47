//! How the 32 addresses of a warp lie: written out for AVX2, because compilers do not find these loops.

/// Differences between a warp's addresses and two patterns; zero where all lanes fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// Each lane `step` after the one before.
    pub run: bool,
    /// All lanes at the first lane's address.
    pub same: bool,
}

/// Lowest and highest as signed numbers, and every bit that is set in any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub low: i64,
    pub high: i64,
    pub bits: u64,
}

#[inline(always)]
pub(crate) fn pattern64<const FAST: bool>(a: &[u64; 32], step: u64) -> Pattern {
    #[cfg(target_arch = "x86_64")]
    if FAST {
        use std::arch::x86_64::*;
        // SAFETY: `FAST` is only ever true in code for machines with AVX2; the loads are of `a`'s 256 bytes.
        unsafe {
            let first = _mm256_set1_epi64x(a[0] as i64);
            let s = step as i64;
            let mut expected = _mm256_add_epi64(first, _mm256_set_epi64x(3 * s, 2 * s, s, 0));
            let four = _mm256_set1_epi64x(4 * s);
            let (mut run, mut same) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for k in 0..8 {
                let v = _mm256_loadu_si256(a.as_ptr().add(4 * k).cast());
                run = _mm256_or_si256(run, _mm256_xor_si256(v, expected));
                same = _mm256_or_si256(same, _mm256_xor_si256(v, first));
                expected = _mm256_add_epi64(expected, four);
            }
            return Pattern {
                run: _mm256_testz_si256(run, run) != 0,
                same: _mm256_testz_si256(same, same) != 0,
            };
        }
    }
    Pattern {
        run: (0..32).all(|n| a[n] == a[0].wrapping_add(n as u64 * step)),
        same: a.iter().all(|v| *v == a[0]),
    }
}

#[inline(always)]
pub(crate) fn pattern32<const FAST: bool>(a: &[u32; 32], step: u32) -> Pattern {
    #[cfg(target_arch = "x86_64")]
    if FAST {
        use std::arch::x86_64::*;
        // SAFETY: as in `pattern64`; `a` has 128 bytes.
        unsafe {
            let first = _mm256_set1_epi32(a[0] as i32);
            let lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
            let steps = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(step as i32));
            let mut expected = _mm256_add_epi32(first, steps);
            let eight = _mm256_set1_epi32(8 * step as i32);
            let (mut run, mut same) = (_mm256_setzero_si256(), _mm256_setzero_si256());
            for k in 0..4 {
                let v = _mm256_loadu_si256(a.as_ptr().add(8 * k).cast());
                run = _mm256_or_si256(run, _mm256_xor_si256(v, expected));
                same = _mm256_or_si256(same, _mm256_xor_si256(v, first));
                expected = _mm256_add_epi32(expected, eight);
            }
            return Pattern {
                run: _mm256_testz_si256(run, run) != 0,
                same: _mm256_testz_si256(same, same) != 0,
            };
        }
    }
    Pattern {
        run: (0..32).all(|n| a[n] == a[0].wrapping_add(n as u32 * step)),
        same: a.iter().all(|v| *v == a[0]),
    }
}

/// The pattern of each half warp: rows of a tile 16 wide lie so. Not looked for without AVX2.
#[inline(always)]
pub(crate) fn halves32<const FAST: bool>(a: &[u32; 32], step: u32) -> [Pattern; 2] {
    #[cfg(target_arch = "x86_64")]
    if FAST {
        use std::arch::x86_64::*;
        // SAFETY: as in `pattern64`; `a` has 128 bytes.
        unsafe {
            let lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
            let steps = _mm256_mullo_epi32(lanes, _mm256_set1_epi32(step as i32));
            let eight = _mm256_set1_epi32(8 * step as i32);
            // No closures here: they would be compiled without the vector instructions.
            let mut found = [Pattern {
                run: false,
                same: false,
            }; 2];
            for half in 0..2 {
                let first = _mm256_set1_epi32(a[16 * half] as i32);
                let low = _mm256_loadu_si256(a.as_ptr().add(16 * half).cast());
                let high = _mm256_loadu_si256(a.as_ptr().add(16 * half + 8).cast());
                let expected = _mm256_add_epi32(first, steps);
                let run = _mm256_or_si256(
                    _mm256_xor_si256(low, expected),
                    _mm256_xor_si256(high, _mm256_add_epi32(expected, eight)),
                );
                let same = _mm256_or_si256(_mm256_xor_si256(low, first), _mm256_xor_si256(high, first));
                found[half].run = _mm256_testz_si256(run, run) != 0;
                found[half].same = _mm256_testz_si256(same, same) != 0;
            }
            return found;
        }
    }
    let _ = (a, step);
    [Pattern {
        run: false,
        same: false,
    }; 2]
}

#[inline(always)]
pub(crate) fn extent<const FAST: bool>(a: &[u64; 32]) -> Extent {
    #[cfg(target_arch = "x86_64")]
    if FAST {
        use std::arch::x86_64::*;
        // SAFETY: as in `pattern64`; the stores are to arrays of 32 bytes.
        unsafe {
            let mut low = _mm256_loadu_si256(a.as_ptr().cast());
            let (mut high, mut bits) = (low, low);
            for k in 1..8 {
                let v = _mm256_loadu_si256(a.as_ptr().add(4 * k).cast());
                low = _mm256_blendv_epi8(low, v, _mm256_cmpgt_epi64(low, v));
                high = _mm256_blendv_epi8(high, v, _mm256_cmpgt_epi64(v, high));
                bits = _mm256_or_si256(bits, v);
            }
            let (mut lows, mut highs, mut all) = ([0i64; 4], [0i64; 4], [0u64; 4]);
            _mm256_storeu_si256(lows.as_mut_ptr().cast(), low);
            _mm256_storeu_si256(highs.as_mut_ptr().cast(), high);
            _mm256_storeu_si256(all.as_mut_ptr().cast(), bits);
            return Extent {
                low: lows[0].min(lows[1]).min(lows[2].min(lows[3])),
                high: highs[0].max(highs[1]).max(highs[2].max(highs[3])),
                bits: all[0] | all[1] | all[2] | all[3],
            };
        }
    }
    a.iter().fold(
        Extent {
            low: i64::MAX,
            high: i64::MIN,
            bits: 0,
        },
        |e, v| Extent {
            low: e.low.min(*v as i64),
            high: e.high.max(*v as i64),
            bits: e.bits | v,
        },
    )
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::inst::VectorSet;

    #[test]
    fn both_ways_agree() {
        if VectorSet::detect() != VectorSet::Avx2 {
            return;
        }
        let mut cases: Vec<[u64; 32]> = vec![
            std::array::from_fn(|n| 0x7000_0000_1000 + 4 * n as u64),
            std::array::from_fn(|n| 0xffff_fff0 + 4 * n as u64),
            [0x7000_0000_1004; 32],
            std::array::from_fn(|n| if n == 31 { 1 << 63 } else { 64 + 4 * n as u64 }),
        ];
        for odd in 0..32 {
            cases.push(std::array::from_fn(|n| 4096 + 8 * n as u64 + u64::from(n == odd)));
        }
        for a in cases {
            let narrow = a.map(|v| v as u32);
            for step in [1u64, 4, 8, 16] {
                assert_eq!(pattern64::<true>(&a, step), pattern64::<false>(&a, step));
                let step = step as u32;
                assert_eq!(
                    pattern32::<true>(&narrow, step),
                    pattern32::<false>(&narrow, step)
                );
            }
            for step in [1u32, 4, 8, 16] {
                for (half, found) in halves32::<true>(&narrow, step).into_iter().enumerate() {
                    let part = &narrow[16 * half..16 * half + 16];
                    let run = (0..16).all(|n| part[n] == part[0].wrapping_add(n as u32 * step));
                    assert_eq!(
                        found,
                        Pattern {
                            run,
                            same: part.iter().all(|v| *v == part[0])
                        }
                    );
                }
            }
            assert_eq!(extent::<true>(&a), extent::<false>(&a));
        }
    }
}

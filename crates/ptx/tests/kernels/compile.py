#!/usr/bin/env python3
"""Compiles every .cu file beside this script to PTX with NVRTC; no GPU and no CUDA installation needed.

    python3 -m venv .venv && .venv/bin/pip install nvidia-cuda-nvrtc
    .venv/bin/python crates/ptx/tests/kernels/compile.py

A file begins with a line for each of its outputs, `// nvrtc<suffix>: options`; the suffix ends the output's name.
"""
import ctypes
import glob
import os
import pathlib
import re
import sys

here = pathlib.Path(__file__).resolve().parent
libraries = [p for root in sys.path for p in glob.glob(f"{root}/nvidia/**/libnvrtc.so.*", recursive=True)]
nvrtc = ctypes.CDLL(libraries[0])
# Debug information records where the compiler stood: nowhere in particular.
os.chdir("/")



def compile(source, options):
    """The PTX that `options` make of `source`; what the compiler says goes to stderr."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None)
    arguments = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    failed = nvrtc.nvrtcCompileProgram(program, len(options), arguments)
    size = ctypes.c_size_t()
    nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetProgramLog(program, log)
    if log.value:
        print(f"{source.name}: {log.value.decode()}", file=sys.stderr)
    if failed:
        sys.exit(1)
    nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetPTX(program, ptx)
    return ptx.value


for source in sorted(here.glob("*.cu")):
    for suffix, options in re.findall(r"^// nvrtc(\w*): (.*)$", source.read_text(), re.M):
        ptx = compile(source, options.split())
        here.joinpath(f"{source.stem}{suffix}.ptx").write_bytes(ptx)
        print(f"{source.stem}{suffix}: {len(ptx)} bytes")

"""Prints as JSON what nvidia-ml-py sees: each device with its memory, its share of BAR1, and its processes."""

import json

import pynvml


def processes(device):
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
    return {process.pid: process.usedGpuMemory for process in listed}


def look(index):
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    second = pynvml.nvmlDeviceGetMemoryInfo(device, version=pynvml.nvmlMemory_v2)
    bar1 = pynvml.nvmlDeviceGetBAR1MemoryInfo(device)
    uuid = pynvml.nvmlDeviceGetUUID(device)
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return {
        "index": pynvml.nvmlDeviceGetIndex(by_uuid),
        "uuid": uuid,
        "name": pynvml.nvmlDeviceGetName(device),
        "memory": [memory.total, memory.used, memory.free],
        "second": [second.total, second.used, second.free],
        "bar1_total": bar1.bar1Total,
        "processes": processes(device),
        "graphics": len(pynvml.nvmlDeviceGetGraphicsRunningProcesses(device)),
        "utilization": pynvml.nvmlDeviceGetUtilizationRates(device).gpu,
    }


pynvml.nvmlInit()
print(json.dumps([look(index) for index in range(pynvml.nvmlDeviceGetCount())]))
pynvml.nvmlShutdown()

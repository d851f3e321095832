"""Pairs for the rules about who does the work, when, and whether it is done anew in every call."""
# ruff: noqa: E501  # a program stays on one line where it reads better so

from tests.tools.judge.source.programs import (
    CAPTURED,
    HONEST,
    HONEST_FORWARD,
    HONEST_NATIVE,
    SCALE,
    Files,
    methods,
    model,
    native,
    only_source,
    scale_with,
)

WORK: dict[str, tuple[list[Files], list[Files]]] = {
    "torch_op_in_forward": (
        [
            model("return torch.matmul(x, x)"),
            model("return x @ x"),
            model("return x.softmax(-1)"),
            model("return nn.functional.gelu(ext.scale(x))"),
            model("return mm(x, x)", before="from torch import matmul as mm"),
            model("return torch.ops.aten.mm.default(x, x)"),
            model("return torch._C._nn.gelu(x)"),
            model("return helper(x)", before="def helper(value):\n    return (lambda v: torch.tanh(v))(value)"),
            model("return run(x)", before="import functools\nrun = functools.partial(torch.add, torch.ones(1))"),
            model("return Fn.apply(x)", before="class Fn(torch.autograd.Function):\n    @staticmethod\n"
                  "    def forward(ctx, value):\n        return torch.relu(value)"),
            model("return OPS['a'](x)", before="OPS = {'a': torch.relu, 'b': ext.scale}"),
            methods("def __init__(self):\n    super().__init__()\n    self.fc = nn.Linear(4, 4)\n"
                    "def forward(self, x):\n    return self.fc(x)"),
            methods("def __init__(self):\n    super().__init__()\n    self.run = torch.relu\n"
                    "def forward(self, x):\n    return self.run(x)"),
            methods("def __init__(self):\n    super().__init__()\n    self.block = Block()\n"
                    "def forward(self, x):\n    return self.block(x)",
                    before="class Block(nn.Module):\n    def forward(self, x):\n        return torch.relu(x)"),
            methods("def forward(self, x):\n    return self.step(x)\ndef step(self, y):\n    return torch.exp(y)"),
            methods("def __init__(self):\n    super().__init__()\n    self.net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())\n"
                    "def forward(self, x):\n    return self.net(x)"),
            methods("def __init__(self):\n    super().__init__()\n    self.rows = nn.ModuleList([nn.Linear(4, 4)])\n"
                    "def forward(self, x):\n    for row in self.rows:\n        x = row(x)\n    return x"),
            methods("def forward(self, x, op=torch.relu):\n    return op(x)"),
            model("import numpy as np\nreturn torch.from_numpy(np.tanh(x.numpy()))"),
            methods("def __init__(self):\n    super().__init__()\n    self.net = torchvision.models.resnet18()\n"
                    "def forward(self, x):\n    return self.net(x)", before="import torchvision"),
            model("return relu(x)", before="from torch import *"),
            model("return ops.relu(x)") | {"ops.py": b"from torch import relu\n"},
            {"program.py": b"from torch import relu\nfrom torch.nn import Module\nclass Inner(Module):\n"
                           b"    def forward(self, x):\n        return relu(x)\nModelNew = Inner\n"},
            scale_with("return at::relu(x);"),
            scale_with("auto f = &at::relu; return f(x);"),
            only_source("#define OP at::relu\n" + SCALE.replace("BODY", "return OP(x);")),
            scale_with("y = x.matmul(x);"),
            scale_with("return torch::nn::functional::gelu(x);"),
        ],
        [
            HONEST,
            methods("def __init__(self):\n    super().__init__()\n    self.net = nn.Sequential(Block(), Block())\n"
                    "def forward(self, x):\n    return self.net(x)",
                    before="class Block(nn.Module):\n    def forward(self, x):\n        return ext.scale(x)"),
            model("y = torch.empty_like(x)\nreturn ext.scale(x.contiguous().view(-1)).reshape(x.shape)"),
            methods("def __init__(self):\n    super().__init__()\n    self.w = nn.Parameter(torch.randn(4, 4) * 0.1)\n"
                    "    self.packed = torch.relu(self.w).t().contiguous()\n"
                    "def forward(self, x):\n    return ext.scale(x)"),
            methods("def __init__(self):\n    super().__init__()\n    self.fc = nn.Linear(4, 4)\n"
                    "def forward(self, x):\n    return ext.scale(x, self.fc.weight, self.fc.bias)"),
            model("grid = (x.shape[0] + 3) // 4 * 2\nreturn ext.scale(x, grid - 1)"),
            model("import numpy as np\nblocks = np.prod(x.shape)\nreturn ext.scale(x, int(blocks))"),
            scale_with("TORCH_CHECK(x.is_cuda()); y = torch::zeros_like(x); auto z = x.view({-1}).contiguous();"),
            scale_with("y = torch::empty({4}, x.options().dtype(torch::kLong).device(at::kCUDA)); auto k = torch::kBool;"),
            HONEST_NATIVE,
        ],
    ),
    "torch_compiler": (
        [
            methods("@torch.compile\ndef forward(self, x):\n    return ext.scale(x)"),
            model("return run(x)", before="run = torch.jit.script(torch.relu)"),
        ],
        [model("import re\npattern = re.compile('x')\nreturn ext.scale(x)")],
    ),
    "hidden_code": (
        [
            model("exec(open('x').read())\nreturn ext.scale(x)"),
            model("return eval(str(x.shape[0]) + '+1') * ext.scale(x)"),
            model("return getattr(torch, 'mat' + 'mul')(x, x)"),
            model("return getattr(torch, ''.join(['re', 'lu']))(x)"),
            model("return getattr(torch, 'uler'[::-1])(x)"),
            model("return __import__('torch').relu(x)"),
            model("import importlib\nreturn importlib.import_module('torch.nn.functional').gelu(x)"),
            model("import importlib\nreturn importlib.import_module(input()).relu(x)"),
        ],
        [
            model("self.exec = ext.scale\nreturn self.exec(x)"),
            model("return getattr(ext, 'scale')(x)"),
            model("return getattr(ext, 'scale_' + str(x.dtype))(x)"),
            model("return torch.relu(x)"),
            model(HONEST_FORWARD, before="def dtype(name):\n    return getattr(torch, name)\nHALF = dtype('float16')"),
        ],
    ),
    "result_kept": (
        [
            model("return run(x)", before="import functools\n@functools.lru_cache\ndef run(v):\n    return ext.scale(v)"),
        ],
        [
            model("key = x.data_ptr()\nif key not in self.cache:\n    self.cache[key] = ext.describe(x.shape)\n"
                  "y = torch.empty_like(x)\next.run(self.cache[key], x, y)\nreturn y"),
            model("if x.shape not in self.cache:\n    self.cache[x.shape] = torch.empty_like(x)\n"
                  "y = self.cache[x.shape]\next.run(x, y)\nreturn y"),
            model("if x.shape not in self.cache:\n    self.cache[x.shape] = ext.allocate(x)\n"
                  "y = self.cache[x.shape]\next.run(x, y)\nreturn y"),
            model("scale = x.abs().max().item()\nreturn ext.scale(x, scale)"),
            model("self.calls += 1\nif self.calls < 3:\n    ext.warm(x)\nreturn ext.scale(x)"),
            model("self.out = ext.scale(x)\nreturn self.out"),
            model("if self.graph is None:\n    self.graph = torch.cuda.CUDAGraph()\n"
                  "    with torch.cuda.graph(self.graph):\n        self.out = ext.scale(self.given)\n"
                  "self.given.copy_(x)\nself.graph.replay()\nreturn self.out"),
            model("if x.data_ptr() in self.graphs:\n    self.graphs[x.data_ptr()].replay()\n    return self.out\n"
                  "self.graphs[x.data_ptr()], self.out = ext.capture(x), ext.scale(x)\nreturn self.out"),
            model("if self.out is None:\n    self.out = ext.pack(self.weight)\nreturn ext.scale(x, self.out)"),
            methods("def plan(self, x):\n    if x.shape not in self.plans:\n        self.plans[x.shape] = ext.tune(x)\n"
                    "    return self.plans[x.shape]\ndef forward(self, x):\n    return ext.scale(x, self.plan(x))"),
            model("return built().scale(x)",
                  before="import functools\n@functools.cache\ndef built():\n"
                         "    return load_inline('e', cpp_sources='torch::Tensor scale(torch::Tensor x);')"),
            scale_with("static const int block = 256;"),
            native("", before="static std::vector<int> sizes;\nstatic std::map<const void*, CUtensorMap> maps;"),
        ],
    ),
    "kernel_not_launched": (
        [
            only_source("__global__ void fast(float* y) { y[0] = 1; }\n"
                        "torch::Tensor scale(torch::Tensor x) { return torch::empty_like(x); }"),
            scale_with("").copy() | {"more.cu": b"__global__ void other(float* y) { y[0] = 1; }"},
        ],
        [
            HONEST,
            HONEST_NATIVE,
            scale_with("void* args[] = {0}; cudaLaunchKernel((void*)scale_kernel, 1, 1, args, 0, 0);"),
            {"p.cu": b"#define GO(k) k<<<1, 1>>>(0)\n__global__ void k(float* y) { y[0] = 1; }\n"
                     b'extern "C" int stitch_forward(void*) { GO(k); return 0; }'},
            {"p.cu": b"__global__ void k(float* y) { y[0] = 1; }\n"
                     b'extern "C" int stitch_forward(void*) { auto f = &k; f<<<1, 1>>>(0); return 0; }'},
            {"k.cu": b'extern "C" __global__ void k(float* y) { y[0] = 1; }',
             "p.cpp": b'int stitch_forward(void*) { cuModuleGetFunction(&f, module, "k"); return 0; }'},
            model("return cupy.RawKernel('extern \"C\" __global__ void f(float* y) { y[0] = 1; }', 'f')(x)",
                  before="import cupy"),
        ],
    ),
    "work_not_joined": (
        [
            model("import threading\nthreading.Thread(target=ext.scale, args=(x,)).start()\nreturn x"),
            scale_with("std::thread t([] {}); t.detach();"),
            native("pthread_t t; pthread_create(&t, 0, 0, 0);"),
            native("if (fork() == 0) scale_kernel<<<1, 1>>>(0, 0, 0);"),
            model("import os\nos.fork()\nreturn ext.scale(x)"),
            native("cudaStream_t s; cudaStreamCreate(&s); scale_kernel<<<1, 1, 0, s>>>(0, 0, 0);"),
        ],
        [
            model("import threading\nt = threading.Thread(target=ext.scale, args=(x,))\nt.start()\nt.join()\nreturn x"),
            model("from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n"
                  "    pool.submit(ext.scale, x)\nreturn x"),
            native("std::thread t([] {}); t.join();"),
            native("handle->calls = x.ndim; ecosystem.system(3); table.clone();"),
            model("side = torch.cuda.Stream()\nside.wait_stream(torch.cuda.current_stream())\n"
                  "with torch.cuda.stream(side):\n    y = ext.scale(x)\n"
                  "torch.cuda.current_stream().wait_stream(side)\nreturn y"),
            native("cudaStream_t s; cudaStreamCreate(&s); cudaStreamWaitEvent(s, 0, 0);"),
        ],
    ),
}  # fmt: skip
"""Rule name to cheats and honest twins."""

CAPTURING = native(CAPTURED + "cudaStreamDestroy(s);\n"
                   "cudaGraphLaunch(exec, static_cast<cudaStream_t>(args->stream));")  # fmt: skip
"""A stream that only records a graph: a note at most."""

// Runs one program under a sanitizer: no Python and no torch in the process, so that reports are about the
// program alone.
//
// Usage: sanitizer_host JOB WEIGHTS_FD INPUTS_FD OUTPUTS_FD
//
// JOB is a text file, one fact a line:
//
//   library PATH                     loaded first, its names visible to the program
//   program PATH                     the built program
//   device 1|2                       DLPack's number: 1 CPU, 2 CUDA
//   threads N                        for stitch_init
//   poison BYTE                      what outputs and workspace hold before a call; -1: whatever is there
//   calls N                          forwards, each in fresh memory; the memory of the one before is freed
//   spend_ms N                       after a warm-up, each of them is repeated for so long in the same memory
//   first param|input|state OFFSET BYTES CODE BITS NDIM sizes... strides... NAME
//
// `param` and `state` lie in the weights' pack, `input` in the inputs' pack. Every tensor gets an allocation
// of its own of exactly its bytes, so that the first byte beyond it is a sanitizer's red zone.
//
// On standard output: one `outputs CALL BYTES...` line a call, then `done`; or `failed STEP STATUS MESSAGE`.
// The bytes of all outputs of all calls are appended to OUTPUTS_FD (CPU only; a copy from a device would hide
// what was never written).
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "stitch/abi.h"

namespace {

constexpr size_t kAlignment = 256;  // what the ABI promises
constexpr int kMaxOutputs = 256;
constexpr int kCuda = 2;

[[noreturn]] void fail(const char* step, int status, const std::string& message) {
  std::printf("failed %s %d %s\n", step, status, message.c_str());
  std::fflush(stdout);
  std::_Exit(3);
}

template <typename Function>
Function symbol(void* library, const char* name) {
  Function found = nullptr;
  *reinterpret_cast<void**>(&found) = dlsym(library, name);
  if (found == nullptr) fail("load", 0, std::string("no function ") + name);
  return found;
}

// The few functions of the CUDA driver that are needed; loaded only for programs of that device.
struct Driver {
  int (*allocate)(unsigned long long*, size_t) = nullptr;
  int (*release)(unsigned long long) = nullptr;
  int (*upload)(unsigned long long, const void*, size_t) = nullptr;
  int (*fill)(unsigned long long, unsigned char, size_t) = nullptr;
  int (*synchronize)() = nullptr;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) fail("device", 0, "the CUDA driver is not here");
    allocate = symbol<decltype(allocate)>(library, "cuMemAlloc_v2");
    release = symbol<decltype(release)>(library, "cuMemFree_v2");
    upload = symbol<decltype(upload)>(library, "cuMemcpyHtoD_v2");
    fill = symbol<decltype(fill)>(library, "cuMemsetD8_v2");
    synchronize = symbol<decltype(synchronize)>(library, "cuCtxSynchronize");
    void* context = nullptr;
    int device = 0;
    // The primary context: the one that the program's own copy of the runtime uses.
    check("device", symbol<int (*)(unsigned)>(library, "cuInit")(0));
    check("device", symbol<int (*)(int*, int)>(library, "cuDeviceGet")(&device, 0));
    check("device", symbol<int (*)(void**, int)>(library, "cuDevicePrimaryCtxRetain")(&context, device));
    check("device", symbol<int (*)(void*)>(library, "cuCtxSetCurrent")(context));
  }

  static void check(const char* step, int error) {
    if (error != 0) fail(step, error, "the CUDA driver answered with error " + std::to_string(error));
  }
};

std::unique_ptr<Driver> cuda;  // empty for a program of the CPU

// Memory of one tensor, exactly as large as it says.
class Block {
 public:
  explicit Block(size_t bytes) : bytes_(bytes) {
    if (!cuda) {
      if (posix_memalign(&data_, kAlignment, bytes_) != 0) fail("memory", 0, "out of memory");
    } else if (bytes_ > 0) {
      unsigned long long address = 0;
      Driver::check("memory", cuda->allocate(&address, bytes_));
      data_ = reinterpret_cast<void*>(address);
    }
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (!cuda)
      std::free(data_);
    else if (data_ != nullptr)
      cuda->release(address());
  }

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  void assign(const char* source) {
    if (bytes_ == 0) return;
    if (cuda)
      Driver::check("memory", cuda->upload(address(), source, bytes_));
    else
      std::memcpy(data_, source, bytes_);
  }

  void poison(int byte) {
    if (byte < 0 || bytes_ == 0) return;
    if (cuda)
      Driver::check("memory", cuda->fill(address(), static_cast<unsigned char>(byte), bytes_));
    else
      std::memset(data_, byte, bytes_);
  }

 private:
  unsigned long long address() const { return reinterpret_cast<unsigned long long>(data_); }

  void* data_ = nullptr;
  size_t bytes_;
};

using Blocks = std::deque<Block>;

// One tensor of a pack: where its bytes lie, and its shape.
struct Entry {
  size_t offset = 0, bytes = 0;
  DLDataType dtype{0, 0, 1};
  std::vector<int64_t> shape, strides;
  std::string name;

  bool dense() const {
    int64_t step = 1;
    for (size_t d = shape.size(); d-- > 0;) {
      if (shape[d] != 1 && strides[d] != step) return false;
      step *= shape[d];
    }
    return true;
  }

  DLTensor tensor(void* data, int device) {
    return {data,  {device, 0},  static_cast<int32_t>(shape.size()),
            dtype, shape.data(), dense() ? nullptr : strides.data(),
            0};
  }
};

struct Job {
  std::vector<std::string> libraries;
  std::string program;
  std::map<std::string, int> numbers;                 // device, threads, poison, calls, spend_ms
  std::map<std::string, std::vector<Entry>> tensors;  // param, input, state

  int device() const { return numbers.at("device"); }
};

Entry read_entry(std::istringstream& line) {
  Entry entry;
  int code = 0, bits = 0, dims = 0;
  line >> entry.offset >> entry.bytes >> code >> bits >> dims;
  entry.dtype = {static_cast<uint8_t>(code), static_cast<uint8_t>(bits), 1};
  entry.shape.resize(static_cast<size_t>(dims));
  entry.strides.resize(static_cast<size_t>(dims));
  for (int64_t& size : entry.shape) line >> size;
  for (int64_t& stride : entry.strides) line >> stride;
  if (!line) fail("job", 0, "a tensor's line is cut off");
  std::getline(line >> std::ws, entry.name);
  return entry;
}

Job read_job(const char* path) {
  std::ifstream file(path);
  if (!file) fail("job", 0, "the job cannot be read");
  Job job;
  std::string text, word;
  while (std::getline(file, text)) {
    std::istringstream line(text);
    line >> word >> std::ws;
    if (word == "library")
      std::getline(line, job.libraries.emplace_back());
    else if (word == "program")
      std::getline(line, job.program);
    else if (word == "param" || word == "input" || word == "state")
      job.tensors[word].push_back(read_entry(line));
    else
      line >> job.numbers[word];
  }
  return job;
}

// The pack behind a descriptor, mapped for reading.
class Pack {
 public:
  explicit Pack(const char* fd_text) {
    const int fd = std::atoi(fd_text);
    struct stat status;
    if (fstat(fd, &status) != 0) fail("job", 0, "a pack is missing");
    size_ = static_cast<size_t>(status.st_size);
    void* mapped = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (mapped == MAP_FAILED) fail("job", 0, "a pack cannot be mapped");
    data_ = static_cast<const char*>(mapped);
  }

  // Copies of the entries' bytes, each in a block of its own.
  std::vector<DLTensor> place(std::vector<Entry>& entries, int device, Blocks& blocks) const {
    std::vector<DLTensor> tensors;
    for (Entry& entry : entries) {
      if (entry.offset > size_ || entry.bytes > size_ - entry.offset)
        fail("job", 0, "a tensor outside its pack");
      blocks.emplace_back(entry.bytes).assign(data_ + entry.offset);
      tensors.push_back(entry.tensor(blocks.back().data(), device));
    }
    return tensors;
  }

 private:
  const char* data_ = nullptr;
  size_t size_ = 0;
};

// The program's six functions.
struct Program {
  explicit Program(const Job& job) {
    for (const std::string& path : job.libraries) {
      if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) fail("load", 0, dlerror());
    }
    void* library = dlopen(job.program.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail("load", 0, dlerror());
    init = symbol<decltype(init)>(library, "stitch_init");
    plan = symbol<decltype(plan)>(library, "stitch_plan");
    forward = symbol<decltype(forward)>(library, "stitch_forward");
    last_error = symbol<decltype(last_error)>(library, "stitch_last_error");
    release = symbol<decltype(release)>(library, "stitch_free");
  }

  void check(const char* step, int32_t status, StitchHandle* handle) const {
    if (status == STITCH_OK) return;
    const char* text = last_error(handle);
    fail(step, status, text ? text : "");
  }

  int32_t (*init)(const StitchInitArgs*, StitchHandle**) = nullptr;
  int32_t (*plan)(StitchHandle*, const DLTensor*, int32_t, StitchPlan*) = nullptr;
  int32_t (*forward)(StitchHandle*, const StitchForwardArgs*) = nullptr;
  const char* (*last_error)(StitchHandle*) = nullptr;
  void (*release)(StitchHandle*) = nullptr;
};

size_t bytes_of(const StitchTensorSpec& spec) {
  size_t count = (spec.dtype.bits + 7u) / 8u;
  for (int32_t d = 0; d < spec.ndim; ++d) count *= static_cast<size_t>(spec.shape[d]);
  return count;
}

void append(int fd, const Block& block) {
  const char* data = static_cast<const char*>(block.data());
  for (size_t done = 0; done < block.bytes();) {
    const ssize_t count = write(fd, data + done, block.bytes() - done);
    if (count <= 0) fail("outputs", 0, "the outputs cannot be written");
    done += static_cast<size_t>(count);
  }
}

// What a library of the job is told before or after each forward; nothing where there is no such library.
using Hook = void (*)();
Hook find_hook(const char* name) {
  Hook hook = [] {};
  void* found = dlsym(RTLD_DEFAULT, name);
  if (found != nullptr) *reinterpret_cast<void**>(&hook) = found;
  return hook;
}

void forward_once(const Program& program, StitchHandle* handle, const StitchForwardArgs& args) {
  program.check("forward", program.forward(handle, &args), handle);
  if (cuda) Driver::check("forward", cuda->synchronize());
}

// One forward, or as many as fit into the time after one that warms up.
void forward(const Program& program, StitchHandle* handle, const StitchForwardArgs& args, int spend_ms) {
  const Hook begin = find_hook("stitch_profile_begin"), finish = find_hook("stitch_profile_end");
  if (spend_ms > 0) forward_once(program, handle, args);
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(spend_ms);
  do {
    begin();
    forward_once(program, handle, args);
    finish();
  } while (std::chrono::steady_clock::now() < end);
}

// Forwards in memory of their own, which is gone afterwards.
void call(const Program& program, StitchHandle* handle, Job& job, const Pack& weights, const Pack& inputs,
          int number, int outputs_fd) {
  Blocks placed, outputs;
  std::vector<DLTensor> input_tensors = inputs.place(job.tensors["input"], job.device(), placed);
  std::vector<DLTensor> state_tensors = weights.place(job.tensors["state"], job.device(), placed);
  std::vector<StitchTensorSpec> specs(kMaxOutputs);
  for (StitchTensorSpec& spec : specs) spec.struct_size = sizeof spec;
  StitchPlan plan{sizeof plan, kMaxOutputs, 0, specs.data(), 0, 0};
  const int32_t num_inputs = static_cast<int32_t>(input_tensors.size());
  program.check("plan", program.plan(handle, input_tensors.data(), num_inputs, &plan), handle);
  if (plan.num_outputs < 0 || plan.num_outputs > kMaxOutputs) fail("plan", 1, "a wrong number of outputs");

  std::vector<DLTensor> output_tensors;
  for (int32_t i = 0; i < plan.num_outputs; ++i) {
    StitchTensorSpec& spec = specs[static_cast<size_t>(i)];
    outputs.emplace_back(bytes_of(spec)).poison(job.numbers["poison"]);
    output_tensors.push_back(
        {outputs.back().data(), {job.device(), 0}, spec.ndim, spec.dtype, spec.shape, nullptr, 0});
  }
  Block workspace(plan.workspace_bytes);
  workspace.poison(job.numbers["poison"]);

  StitchForwardArgs args{sizeof args,          input_tensors.data(),
                         state_tensors.data(), output_tensors.data(),
                         num_inputs,           static_cast<int32_t>(state_tensors.size()),
                         plan.num_outputs,     plan.workspace_bytes ? workspace.data() : nullptr,
                         plan.workspace_bytes, nullptr};
  forward(program, handle, args, job.numbers["spend_ms"]);
  std::printf("outputs %d", number);
  for (const Block& block : outputs) {
    std::printf(" %zu", block.bytes());
    if (!cuda) append(outputs_fd, block);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) fail("job", 0, "usage: sanitizer_host JOB WEIGHTS_FD INPUTS_FD OUTPUTS_FD");
  Job job = read_job(argv[1]);
  const Pack weights(argv[2]), inputs(argv[3]);
  if (job.device() == kCuda) cuda = std::make_unique<Driver>();
  const Program program(job);

  Blocks parameters;
  std::vector<StitchNamedTensor> named;
  std::vector<DLTensor> tensors = weights.place(job.tensors["param"], job.device(), parameters);
  for (size_t i = 0; i < tensors.size(); ++i)
    named.push_back({sizeof(StitchNamedTensor), job.tensors["param"][i].name.c_str(), tensors[i]});
  StitchInitArgs args{sizeof args,  static_cast<int64_t>(named.size()),
                      named.data(), {job.device(), 0},
                      nullptr,      job.numbers["threads"]};
  StitchHandle* handle = nullptr;
  program.check("init", program.init(&args, &handle), handle);
  for (int number = 0; number < job.numbers["calls"]; ++number)
    call(program, handle, job, weights, inputs, number, std::atoi(argv[4]));
  program.release(handle);
  parameters.clear();
  std::printf("done\n");
  std::fflush(stdout);
  return 0;
}

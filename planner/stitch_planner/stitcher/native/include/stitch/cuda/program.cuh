// The frame of a CUDA program: parameters by name, checks of what the caller passes, workspace, and the order
// of things. A generated program derives StitchHandle from Program and includes exports.cuh at its end.
#ifndef STITCH_CUDA_PROGRAM_CUH_
#define STITCH_CUDA_PROGRAM_CUH_

#include <string.h>

#include <memory>
#include <vector>

#include "stitch/cuda/copy.cuh"
#include "stitch/cuda/launch.cuh"
#include "stitch/cuda/replay.cuh"

namespace stitch::cuda {

// What the program was made for; a tensor that differs is refused.
struct TensorFacts {
  const char* name;
  uint8_t code, bits;  // as in DLDataType
  int32_t ndim;
  int64_t shape[STITCH_MAX_DIMS];
  bool written = false;  // an input that the forward writes to

  int64_t numel() const {
    int64_t count = 1;
    for (int i = 0; i < ndim; ++i) count *= shape[i];
    return count;
  }
  int64_t bytes() const { return numel() * (bits / 8); }
};

// Elements that the reference made itself, written into the program.
struct ConstantFacts {
  const void* data;
  uint64_t bytes;
};

struct ProgramFacts {
  const TensorFacts* inputs;
  int32_t num_inputs;
  const TensorFacts* params;
  int32_t num_params;
  const ConstantFacts* constants;
  int32_t num_constants;
  const TensorFacts* state;
  int32_t num_state;
  const TensorFacts* outputs;
  int32_t num_outputs;
  uint64_t workspace_bytes;
  int32_t launches;  // kernels and library calls of a forward
};

inline constexpr uint64_t kAlignment = 256;

constexpr uint64_t align_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Makes the handle's GPU current, and the caller's again at the end.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) {
      changed_ = cudaSetDevice(device) == cudaSuccess;
    }
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

struct DeviceFree {
  void operator()(void* memory) const { cudaFree(memory); }
};

class Program {
 public:
  explicit Program(const ProgramFacts& facts) : facts_(facts) {}
  virtual ~Program() = default;
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int32_t init(const StitchInitArgs& args) {
    device_ = args.device.device_id;
    if (args.device.device_type != kDevice)
      return errors.fail(STITCH_ERROR, "this program runs on CUDA devices");
    const DeviceScope scope(device_);
    int count = 1;
    STITCH_TRY(errors.check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device_),
                            "ask for the number of multiprocessors"));
    multiprocessors_ = count;
    const Call call = make_call(static_cast<cudaStream_t>(args.stream), nullptr, nullptr, 0);
    params_.assign(facts_.num_params, nullptr);
    copies_.clear();
    for (int i = 0; i < facts_.num_params; ++i) STITCH_TRY(bind(i, args, call));
    constants_.assign(facts_.num_constants, nullptr);
    for (int i = 0; i < facts_.num_constants; ++i) STITCH_TRY(upload(i, call));
    scratch_bytes_ = 0;
    replay_.clear();
    STITCH_TRY(reserve_own());
    STITCH_TRY(setup(call));
    // Copies of parameters and packed weights must be there whatever stream the first forward uses.
    return errors.check(cudaStreamSynchronize(call.stream), "prepare parameters");
  }

  int32_t plan(const DLTensor* inputs, int32_t num_inputs, StitchPlan& plan) {
    STITCH_TRY(check_all("input", inputs, num_inputs, facts_.inputs, facts_.num_inputs));
    if (plan.capacity < facts_.num_outputs)
      return errors.fail(STITCH_ERROR, "no room for the outputs' shapes");
    plan.num_outputs = facts_.num_outputs;
    for (int i = 0; i < facts_.num_outputs; ++i) {
      const TensorFacts& output = facts_.outputs[i];
      plan.outputs[i].struct_size = sizeof(StitchTensorSpec);
      plan.outputs[i].ndim = output.ndim;
      plan.outputs[i].dtype = {output.code, output.bits, 1};
      memcpy(plan.outputs[i].shape, output.shape, sizeof output.shape);
    }
    STITCH_TRY(check_written(inputs));
    plan.workspace_bytes = workspace_bytes(inputs);
    plan.flags = STITCH_CAPTURABLE | (facts_.num_state > 0 ? STITCH_INPLACE_STATE : 0);
    return STITCH_OK;
  }

  int32_t forward(const StitchForwardArgs& args) {
    STITCH_TRY(check_all("input", args.inputs, args.num_inputs, facts_.inputs, facts_.num_inputs));
    STITCH_TRY(check_all("state tensor", args.state, args.num_state, facts_.state, facts_.num_state));
    STITCH_TRY(check_all("output", args.outputs, args.num_outputs, facts_.outputs, facts_.num_outputs));
    if (args.workspace_bytes < workspace_bytes(args.inputs)) {
      return errors.fail(STITCH_ERROR, "the workspace is smaller than stitch_plan asked for these inputs");
    }
    STITCH_TRY(check_written(args.inputs));
    const DeviceScope scope(device_);
    char* const workspace = static_cast<char*>(args.workspace);
    char* next = workspace + align_up(facts_.workspace_bytes);
    const Call call = make_call(static_cast<cudaStream_t>(args.stream), workspace, next, scratch_bytes_);
    next += align_up(scratch_bytes_);
    STITCH_TRY(stage(args.inputs, next, call));
    STITCH_TRY(place("state tensor", args.state, facts_.num_state, state_));
    STITCH_TRY(place("output", args.outputs, facts_.num_outputs, outputs_));
    if (facts_.launches < kFewestLaunches || !replay_.usable(call.stream)) return body(call);
    return own_.empty() ? replay_.run(addresses(workspace), call, [&](const Call& c) { return body(c); })
                        : run_on_own(call, workspace);
  }

  Errors errors;

 protected:
  // Prepares library calls, on the initialisation's stream. `scratch` grows to what the hungriest of them
  // needs.
  virtual int32_t setup(const Call&) { return STITCH_OK; }
  // Launches everything on call.stream.
  virtual int32_t body(const Call& call) = 0;

  void need_scratch(size_t bytes) { scratch_bytes_ = bytes > scratch_bytes_ ? bytes : scratch_bytes_; }

  template <class T>
  const T* input(int i) const {
    return static_cast<const T*>(inputs_[i]);
  }
  // An input that the forward writes to.
  template <class T>
  T* written(int i) const {
    return static_cast<T*>(inputs_[i]);
  }
  template <class T>
  const T* param(int i) const {
    return static_cast<const T*>(params_[i]);
  }
  template <class T>
  const T* constant(int i) const {
    return static_cast<const T*>(constants_[i]);
  }
  template <class T>
  T* state(int i) const {
    return static_cast<T*>(state_[i]);
  }
  template <class T>
  T* output(int i) const {
    return static_cast<T*>(outputs_[i]);
  }

 private:
#if defined(STITCH_ON_HOST)
  static constexpr int32_t kDevice = 1;  // kDLCPU
#else
  static constexpr int32_t kDevice = 2;  // kDLCUDA
#endif
  static constexpr uintptr_t kTensorAlignment = 16;  // of the widest access

  static void* address(const DLTensor& tensor) {
    return static_cast<char*>(tensor.data) + tensor.byte_offset;
  }

  static bool aligned(const DLTensor& tensor) {
    return reinterpret_cast<uintptr_t>(address(tensor)) % kTensorAlignment == 0;
  }

  static bool dense(const DLTensor& tensor) {
    int64_t expected = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
      if (tensor.shape[i] == 0) return true;
      if (tensor.strides != nullptr && tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
      expected *= tensor.shape[i];
    }
    return true;
  }

  static bool usable(const DLTensor& tensor) { return dense(tensor) && aligned(tensor); }

  static Strided layout_of(const DLTensor& tensor) {
    Strided layout;
    layout.ndim = tensor.ndim;
    layout.numel = 1;
    for (int i = tensor.ndim - 1; i >= 0; --i) {
      layout.shape[i] = tensor.shape[i];
      layout.strides[i] = tensor.strides != nullptr ? tensor.strides[i] : layout.numel;
      layout.numel *= tensor.shape[i];
    }
    return layout;
  }

  Call make_call(cudaStream_t stream, char* workspace, void* scratch, size_t scratch_bytes) {
    return {stream, workspace, scratch, scratch_bytes, multiprocessors_, &errors};
  }

  int32_t check_all(const char* kind, const DLTensor* tensors, int32_t count, const TensorFacts* facts,
                    int32_t expected) {
    if (count != expected) {
      return errors.fail(STITCH_UNSUPPORTED, std::string("wrong number of tensors: ") + kind + "s given " +
                                                 std::to_string(count) + ", made for " +
                                                 std::to_string(expected));
    }
    for (int i = 0; i < count; ++i) STITCH_TRY(check_one(kind, tensors[i], facts[i]));
    return STITCH_OK;
  }

  // Runs for every tensor of every call: no text is put together unless something is wrong.
  int32_t check_one(const char* kind, const DLTensor& tensor, const TensorFacts& facts) {
    const auto refuse = [&](const char* why) {
      return errors.fail(STITCH_UNSUPPORTED, std::string(kind) + " " + facts.name + why);
    };
    if (tensor.device.device_type != kDevice) return refuse(" is not on a GPU");
    if (tensor.dtype.code != facts.code || tensor.dtype.bits != facts.bits || tensor.dtype.lanes != 1) {
      return refuse(" has another type than the program was made for");
    }
    bool same = tensor.ndim == facts.ndim;
    for (int dim = 0; same && dim < facts.ndim; ++dim) same = tensor.shape[dim] == facts.shape[dim];
    return same ? STITCH_OK : refuse(" has another shape than the program was made for");
  }

  // Finds parameter `i` by name; one that lies unusually is copied, which init may do and forward may not.
  int32_t bind(int i, const StitchInitArgs& args, const Call& call) {
    const TensorFacts& facts = facts_.params[i];
    const StitchNamedTensor* found = nullptr;
    // Entries are struct_size apart: a newer caller's are longer than ours.
    const char* entry = reinterpret_cast<const char*>(args.params);
    for (int64_t p = 0; p < args.num_params && found == nullptr; ++p) {
      const auto* named = reinterpret_cast<const StitchNamedTensor*>(entry);
      if (strcmp(named->name, facts.name) == 0) found = named;
      entry += named->struct_size;
    }
    if (found == nullptr) {
      return errors.fail(STITCH_ERROR, std::string("the caller passed no parameter ") + facts.name);
    }
    STITCH_TRY(check_one("parameter", found->tensor, facts));
    if (usable(found->tensor)) {
      params_[i] = address(found->tensor);
      return STITCH_OK;
    }
    void* memory = nullptr;
    STITCH_TRY(allocate(&memory, facts.bytes()));
    params_[i] = memory;
    return copy_strided(address(found->tensor), memory, layout_of(found->tensor), facts.bits / 8, call);
  }

  int32_t upload(int i, const Call& call) {
    const ConstantFacts& facts = facts_.constants[i];
    void* memory = nullptr;
    STITCH_TRY(allocate(&memory, facts.bytes));
    constants_[i] = memory;
    return errors.check(cudaMemcpyAsync(memory, facts.data, facts.bytes, cudaMemcpyHostToDevice, call.stream),
                        "upload a constant");
  }

  // Memory of our own for inputs and outputs, where copying them is cheaper than their kernels' launches.
  int32_t reserve_own() {
    uint64_t total = 0;
    bool writes = facts_.num_state > 0;
    for (int i = 0; i < facts_.num_inputs; ++i) {
      total += facts_.inputs[i].bytes();
      writes = writes || facts_.inputs[i].written;
    }
    for (int i = 0; i < facts_.num_outputs; ++i) total += facts_.outputs[i].bytes();
    own_.clear();
    if (facts_.launches < kFewestLaunches || writes || total > most_copied(facts_.launches)) return STITCH_OK;
    for (int i = 0; i < facts_.num_inputs + facts_.num_outputs; ++i) {
      void* memory = nullptr;
      const int output = i - facts_.num_inputs;
      STITCH_TRY(allocate(&memory, output < 0 ? facts_.inputs[i].bytes() : facts_.outputs[output].bytes()));
      own_.push_back(memory);
    }
    return STITCH_OK;
  }

  // What decides whether a graph fits a call.
  std::vector<void*> addresses(void* workspace) const {
    std::vector<void*> all{workspace};
    all.insert(all.end(), inputs_.begin(), inputs_.end());
    all.insert(all.end(), state_.begin(), state_.end());
    all.insert(all.end(), outputs_.begin(), outputs_.end());
    return all;
  }

  // The forward on tensors of our own, which are filled before it and read after it.
  int32_t run_on_own(const Call& call, void* workspace) {
    const std::vector<void*> inputs = inputs_, outputs = outputs_;
    for (int i = 0; i < facts_.num_inputs; ++i) {
      STITCH_TRY(move(own_[i], inputs[i], facts_.inputs[i].bytes(), call));
      inputs_[i] = own_[i];
    }
    for (int i = 0; i < facts_.num_outputs; ++i) outputs_[i] = own_[facts_.num_inputs + i];
    STITCH_TRY(replay_.run(addresses(workspace), call, [&](const Call& c) { return body(c); }));
    for (int i = 0; i < facts_.num_outputs; ++i) {
      STITCH_TRY(move(outputs[i], outputs_[i], facts_.outputs[i].bytes(), call));
    }
    return STITCH_OK;
  }

  int32_t move(void* to, const void* from, uint64_t bytes, const Call& call) {
    if (bytes == 0) return STITCH_OK;
    return errors.check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, call.stream),
                        "copy a tensor beside the graph");
  }

  // Device memory that lives as long as the handle. Only init may ask for it.
  int32_t allocate(void** memory, uint64_t bytes) {
    STITCH_TRY(errors.check(cudaMalloc(memory, bytes), "take memory for parameters"));
    copies_.emplace_back(*memory);
    return STITCH_OK;
  }

  uint64_t workspace_bytes(const DLTensor* inputs) const {
    uint64_t bytes = align_up(facts_.workspace_bytes) + align_up(scratch_bytes_);
    for (int i = 0; i < facts_.num_inputs; ++i) {
      if (!usable(inputs[i])) bytes += align_up(facts_.inputs[i].bytes());
    }
    return bytes;
  }

  // What the forward writes to an input has to reach it, so that a staged copy will not do.
  int32_t check_written(const DLTensor* inputs) {
    for (int i = 0; i < facts_.num_inputs; ++i) {
      if (facts_.inputs[i].written && !usable(inputs[i])) {
        return errors.fail(
            STITCH_UNSUPPORTED,
            "input " + std::to_string(i) + " is written to: it must be dense and aligned to 16 bytes");
      }
    }
    return STITCH_OK;
  }

  int32_t stage(const DLTensor* inputs, char* next, const Call& call) {
    inputs_.resize(facts_.num_inputs);
    for (int i = 0; i < facts_.num_inputs; ++i) {
      inputs_[i] = address(inputs[i]);
      if (usable(inputs[i])) continue;
      STITCH_TRY(copy_strided(inputs_[i], next, layout_of(inputs[i]), facts_.inputs[i].bits / 8, call));
      inputs_[i] = next;
      next += align_up(facts_.inputs[i].bytes());
    }
    return STITCH_OK;
  }

  int32_t place(const char* kind, const DLTensor* tensors, int32_t count, std::vector<void*>& addresses) {
    addresses.resize(count);
    for (int i = 0; i < count; ++i) {
      if (!usable(tensors[i])) {
        return errors.fail(STITCH_UNSUPPORTED, std::string(kind) + " must be dense and aligned to 16 bytes");
      }
      addresses[i] = address(tensors[i]);
    }
    return STITCH_OK;
  }

  const ProgramFacts& facts_;
  int device_ = 0;
  int multiprocessors_ = 1;
  size_t scratch_bytes_ = 0;
  std::vector<const void*> params_, constants_;
  std::vector<void*> inputs_, state_, outputs_;
  std::vector<std::unique_ptr<void, DeviceFree>> copies_;
  std::vector<void*> own_;  // inputs, then outputs; empty: the caller's are used
  Replay replay_;           // last: its graphs go before the memory that they use
};

}  // namespace stitch::cuda
#endif  // STITCH_CUDA_PROGRAM_CUH_

// A pretend accelerator for torch: memory of its own, as far as torch can see, computed with on the CPU.
//
// It refuses operands of two devices as CUDA does, and counts what costs time on a real device: launches (operators
// that reach the device), copies in both directions, and waits (whatever makes the host stand still until the device
// is done). A graph is captured and replayed as CUDA's are: while it is captured nothing is computed that anybody may
// use, a wait or a copy between host and device is an error, and a replay computes with what lies in the same memory
// then. torch's interface for such devices: https://docs.pytorch.org/tutorials/advanced/privateuseone.html
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/rms_norm_ops.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <set>

using at::Tensor;

namespace {

constexpr auto DEVICE = c10::DeviceType::PrivateUse1;
enum Count { LAUNCHES, H2D, D2H, WAITS, GRAPHS, NODES, H2D_BYTES, D2H_BYTES, BYTES, PEAK, COUNTS };
std::atomic<int64_t> counts[COUNTS];
std::mutex lock;
std::map<std::string, int64_t> names;                   // how often each operator, copy and wait happened
std::map<const void*, size_t> pinned;                   // what the host has pinned
std::map<const void*, std::vector<char>> under_way;     // pinned memory that is read until the next wait, as it was

struct Graph {
  std::vector<std::function<void()>> nodes;
  std::vector<Tensor> made;                                           // what the nodes write anew
  std::vector<std::pair<c10::Storage, std::vector<char>>> written_to;  // what they write to, as it was before

  // To be called before a node writes to memory: a capture leaves all memory as it is.
  void keep(const Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    for (const Tensor& one : made)
      if (one.storage().is_alias_of(storage)) return;
    for (const auto& [known, bytes] : written_to)
      if (known.is_alias_of(storage)) return;
    auto bytes = static_cast<const char*>(storage.data());
    written_to.emplace_back(storage, std::vector<char>(bytes, bytes + storage.nbytes()));
  }
};
std::map<int64_t, Graph> graphs;
thread_local Graph* capturing = nullptr;
thread_local bool poisoned = false;
thread_local int inside = 0;  // copies that torch's fallback makes are no copies of the program's

struct Inside {
  Inside() { inside++; }
  ~Inside() { inside--; }
};

void note(Count count, const std::string& name) {
  counts[count]++;
  std::lock_guard<std::mutex> guard(lock);
  names[name]++;
}

void wait(const std::string& why) {
  TORCH_CHECK(!capturing, "pretend device: the host may not wait while a graph is captured (", why, ")");
  note(WAITS, "wait: " + why);
  std::lock_guard<std::mutex> guard(lock);
  for (const auto& [place, then] : under_way)
    TORCH_CHECK(!std::memcmp(place, then.data(), then.size()),
                "pretend device: pinned memory was written to before its copy had been waited for");
  under_way.clear();
}

struct Memory final : c10::Allocator {
  static constexpr size_t HEAD = 64;  // holds the size
  c10::DataPtr allocate(size_t size) override {
    void* raw = nullptr;
    TORCH_CHECK(!posix_memalign(&raw, HEAD, size + HEAD), "pretend device: out of memory");
    *static_cast<size_t*>(raw) = size;
    if (poisoned) std::memset(static_cast<char*>(raw) + HEAD, -1, size);  // NaN: a capture computes nothing
    int64_t now = counts[BYTES] += size, peak = counts[PEAK];
    while (now > peak && !counts[PEAK].compare_exchange_weak(peak, now)) {}
    return {static_cast<char*>(raw) + HEAD, raw, &free_, c10::Device(DEVICE, 0)};
  }
  static void free_(void* raw) {
    counts[BYTES] -= *static_cast<size_t*>(raw);
    std::free(raw);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
} memory;

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    void* raw = nullptr;
    TORCH_CHECK(!posix_memalign(&raw, 64, std::max<size_t>(size, 1)), "no pinned memory");
    std::lock_guard<std::mutex> guard(lock);
    pinned[raw] = std::max<size_t>(size, 1);
    return {raw, raw, &free_, c10::Device(c10::DeviceType::CPU)};
  }
  static void free_(void* raw) {
    {
      std::lock_guard<std::mutex> guard(lock);
      auto end = static_cast<const char*>(raw) + pinned[raw];
      // As CUDA's allocator: freed memory is not used again before the copies from it are done.
      for (auto at = under_way.lower_bound(raw); at != under_way.end() && at->first < end;) at = under_way.erase(at);
      pinned.erase(raw);
    }
    std::free(raw);
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_; }
  void copy_data(void* to, const void* from, size_t size) const override { std::memcpy(to, from, size); }
} pinned_memory;

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DEVICE> {
  c10::Device exchangeDevice(c10::Device) const override { return {DEVICE, 0}; }
  c10::Device getDevice() const override { return {DEVICE, 0}; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  bool isPinnedPtr(const void* data) const override {
    std::lock_guard<std::mutex> guard(lock);
    auto after = pinned.upper_bound(data);
    if (after == pinned.begin()) return false;
    auto [first, size] = *--after;
    return data < static_cast<const char*>(first) + size;
  }
};

bool here(const Tensor& tensor) { return tensor.device().type() == DEVICE; }

// The same memory as a tensor of the CPU's.
Tensor host(const Tensor& t) {
  if (!here(t)) return t;
  return at::from_blob(t.data_ptr(), t.sizes(), t.strides(), [t](void*) {}, at::TensorOptions(t.scalar_type()));
}

Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout>,
             std::optional<c10::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &memory, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool non_blocking) {
  auto copy = [from, to] { host(to).copy_(host(from)); };
  if (!to.numel()) return to;
  if (inside) {
    copy();
  } else if (here(from) && here(to)) {
    if (capturing) {
      capturing->keep(to);
      capturing->nodes.push_back(copy);
    } else {
      note(LAUNCHES, "copy_");
    }
    copy();
  } else if (here(to)) {
    TORCH_CHECK(!capturing, "pretend device: no copy from the host while a graph is captured");
    note(H2D, "copy to the device");
    counts[H2D_BYTES] += from.nbytes();
    copy();
    if (non_blocking && from.is_contiguous() && from.is_pinned()) {
      auto bytes = static_cast<const char*>(from.const_data_ptr());
      std::lock_guard<std::mutex> guard(lock);
      under_way[bytes] = std::vector<char>(bytes, bytes + from.nbytes());
    } else {
      wait("copy from memory that is not pinned, or that was not said to be non_blocking");
    }
  } else {
    wait("copy to the host");
    note(D2H, "copy to the host");
    counts[D2H_BYTES] += from.nbytes();
    copy();
  }
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  Inside guard;
  return copy_from(from, to, false);
}

at::Scalar item(const Tensor& tensor) {
  wait("item");
  note(D2H, "item");
  return host(tensor).item();
}

const Tensor& resize(const Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* tensor = self.unsafeGetTensorImpl();
  size_t need = (c10::multiply_integers(sizes) + tensor->storage_offset()) * self.itemsize();
  if (self.storage().nbytes() < need) {
    auto fresh = memory.allocate(need);
    if (self.storage().nbytes()) std::memcpy(fresh.get(), self.storage().data(), self.storage().nbytes());
    self.storage().set_data_ptr(std::move(fresh));
    self.storage().set_nbytes(need);
  }
  tensor->set_sizes_contiguous(sizes);
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                    c10::SymIntArrayRef stride) {
  auto* tensor = self.unsafeGetTensorImpl();
  tensor->set_storage_keep_dtype(source);
  tensor->set_storage_offset(offset.expect_int());
  auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (stride.empty()) tensor->set_sizes_contiguous(sizes);
  else tensor->set_sizes_and_strides(sizes, C10_AS_INTARRAYREF_SLOW(stride));
  return self;
}

Tensor& set_whole_storage(Tensor& self, at::Storage source) {
  c10::SymInt size = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, source, 0, {size}, {});
}

// All tensors among values, in order.
std::vector<Tensor> tensors_of(c10::ArrayRef<c10::IValue> values) {
  std::vector<Tensor> found;
  for (const auto& value : values) {
    if (value.isTensor()) {
      found.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const Tensor& one : value.toTensorVector()) found.push_back(one);
    } else if (value.isOptionalTensorList()) {
      for (const auto& one : value.toOptionalTensorList().vec()) found.push_back(one.value_or(Tensor()));
    }
  }
  found.erase(std::remove_if(found.begin(), found.end(), [](const Tensor& t) { return !t.defined(); }), found.end());
  return found;
}

const std::set<std::string> INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"};
// Operators whose results have a size that only the device knows, or that are asked for by the host.
const std::set<std::string> WAITING = {
    "aten::nonzero", "aten::masked_select", "aten::equal", "aten::bincount", "aten::_unique", "aten::_unique2",
    "aten::unique_dim", "aten::unique_consecutive", "aten::repeat_interleave.Tensor"};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  std::string name = schema.name() + (schema.overload_name().empty() ? "" : "." + schema.overload_name());
  std::vector<c10::IValue> given(stack->end() - schema.arguments().size(), stack->end());
  auto inputs = tensors_of(given);
  bool indexed = INDEXED.count(schema.name());
  for (size_t i = 0; i < inputs.size(); i++) {
    const Tensor& input = inputs[i];
    if (!here(input) && input.dim() && !(indexed && i)) {  // CUDA takes numbers and indices of the CPU's
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
                  "pretend:0 and cpu, in ", name);
    }
    if (indexed && i && !here(input)) {
      note(H2D, "copy of an index");
      wait("copy of an index");
    }
    // Of a mask that is read, torch asks nonzero itself.
    if (indexed && i && name != "aten::index.Tensor_out" && input.scalar_type() == at::kBool) wait("places in a mask");
  }
  if (WAITING.count(name)) wait(name);
  if (!capturing) {
    note(LAUNCHES, name);
    Inside guard;
    at::native::cpu_fallback(op, stack);
    return;
  }
  for (size_t i = 0; i < given.size(); i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite())
      for (const Tensor& written : tensors_of({given[i]})) capturing->keep(written);
  }
  Inside guard;
  at::native::cpu_fallback(op, stack);
  // Inputs stay in memory, and so do outputs: a replay writes new ones to the same places.
  size_t count = schema.returns().size();
  auto outputs = tensors_of(torch::jit::last(*stack, count));
  for (Tensor& output : outputs) {
    for (const Tensor& input : inputs)
      if (output.defined() && output.storage().is_alias_of(input.storage())) output = Tensor();
    if (output.defined()) capturing->made.push_back(output);
  }
  capturing->nodes.push_back([op, given, outputs, count] {
    torch::jit::Stack again(given);
    at::native::cpu_fallback(op, &again);
    auto fresh = tensors_of(torch::jit::last(again, count));
    for (size_t i = 0; i < outputs.size(); i++)
      if (outputs[i].defined() && outputs[i].numel()) host(outputs[i]).copy_(host(fresh[i]));
  });
}

// One launch, as on CUDA; where a gradient is wanted, its parts, as torch composes it.
Tensor rms_norm(const Tensor& x, c10::SymIntArrayRef shape, const std::optional<Tensor>& weight,
                std::optional<double> eps) {
  if (c10::GradMode::is_enabled() && (x.requires_grad() || (weight && weight->requires_grad())))
    return at::_ops::rms_norm::redispatch(c10::DispatchKeySet(c10::DispatchKey::AutogradCPU), x, shape, weight, eps);
  at::AutoDispatchBelowADInplaceOrView guard;
  return at::_ops::rms_norm::call(x, shape, weight, eps);
}

void capture_begin(int64_t graph) {
  TORCH_CHECK(!capturing && !graphs.count(graph), "pretend device: this graph, or another, is being captured");
  capturing = &graphs[graph];
  poisoned = true;
}

void capture_end(int64_t graph) {
  TORCH_CHECK(capturing == &graphs.at(graph), "pretend device: this graph is not being captured");
  capturing = nullptr;
  poisoned = false;
  Graph& done = graphs.at(graph);
  for (const auto& [storage, bytes] : done.written_to) std::memcpy(storage.mutable_data(), bytes.data(), bytes.size());
  for (const Tensor& made : done.made) std::memset(made.storage().mutable_data(), -1, made.storage().nbytes());  // NaN
  done.written_to.clear();
}

void replay(int64_t graph) {
  TORCH_CHECK(!capturing, "pretend device: a graph is not replayed into another");
  note(LAUNCHES, "graph");
  const auto& nodes = graphs.at(graph).nodes;
  counts[GRAPHS]++;
  counts[NODES] += nodes.size();
  Inside guard;
  for (const auto& node : nodes) node();
}

void reset() {
  for (int count = LAUNCHES; count < BYTES; count++) counts[count] = 0;
  counts[PEAK] = counts[BYTES].load();
  std::lock_guard<std::mutex> guard(lock);
  names.clear();
}

std::vector<int64_t> all_counts() { return {counts, counts + COUNTS}; }

std::string all_names() {
  std::lock_guard<std::mutex> guard(lock);
  std::string found;
  for (const auto& [name, count] : names) found += std::to_string(count) + "\t" + name + "\n";
  return found;
}

// How the program's own calls reach this file, as `torch.ops.pretend.NAME`.
TORCH_LIBRARY(pretend, m) {
  m.def("counts() -> int[]", &all_counts);
  m.def("names() -> str", &all_names);
  m.def("reset() -> ()", &reset);
  m.def("synchronize() -> ()", [] { wait("synchronize"); });
  m.def("capture_begin(int graph) -> ()", &capture_begin);
  m.def("capture_end(int graph) -> ()", &capture_end);
  m.def("replay(int graph) -> ()", &replay);
  m.def("forget(int graph) -> ()", [](int64_t graph) { graphs.erase(graph); });
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(item));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("rms_norm", torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { m.impl("rms_norm", TORCH_FN(rms_norm)); }

struct Registered {
  Hooks hooks;
  Registered() {
    c10::SetAllocator(DEVICE, &memory);
    at::RegisterPrivateUse1HooksInterface(&hooks);
  }
} registered;

}  // namespace

// The process of a run: its limits, what it is told to do, and what it says. It may crash, spin or take all memory.
#pragma once
#include <fcntl.h>
#include <sys/resource.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

namespace {

int told_to;                      // where what is said goes: the text may print something
const void *image_of = nullptr;   // something in the image of the kernels

void say(const std::string &all) {
  for (size_t done = 0; done < all.size();) {
    ssize_t size = write(told_to, all.data() + done, all.size() - done);
    if (size <= 0) _exit(1);
    done += (size_t)size;
  }
}

// A signal that would end the process is told: which thread, and where in the image of the kernels.
void tell_signal(int number, siginfo_t *, void *context) {
  const char *name = number == SIGFPE ? "SIGFPE" : number == SIGSEGV ? "SIGSEGV" : number == SIGBUS ? "SIGBUS" :
                     number == SIGILL ? "SIGILL" : number == SIGXCPU ? "SIGXCPU" : "SIGABRT";
  u8 *pc = nullptr;
#if defined(__x86_64__)
  pc = (u8 *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  pc = (u8 *)((ucontext_t *)context)->uc_mcontext.pc;
#endif
  Dl_info there, kernel;
  bool known = dladdr(image_of, &kernel);
  auto place = [&](u8 *at) {
    return known && dladdr(at, &there) && there.dli_fbase == kernel.dli_fbase ? (unsigned long)(at - (u8 *)kernel.dli_fbase) : 0;
  };
  // a loop may have been on its way to be counted
  unsigned long turned = number == SIGXCPU && W.turned_at ? place(W.turned_at - 1) : 0;
  char text[200];
  int size = snprintf(text, sizeof text, "ended|%s|@%lx|@%lx", name, place(pc), turned);
  if (const Fiber *f = W.current)
    size += snprintf(text + size, sizeof text - size, "|%d|%d", f->number, W.block_number + f->rank);
  text[size++] = '\n';
  _exit(write(told_to, text, (size_t)size) == size ? 0 : 1);
}

void catch_signals() {
  static u8 stack[64 << 10];
  stack_t own{};
  own.ss_sp = stack;
  own.ss_size = sizeof stack;
  sigaltstack(&own, nullptr);
  struct sigaction how{};
  how.sa_sigaction = tell_signal;
  how.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
  for (int number : {SIGFPE, SIGSEGV, SIGBUS, SIGILL, SIGABRT, SIGXCPU}) sigaction(number, &how, nullptr);
}

void limit(int what, u64 most) {
  rlimit now;
  getrlimit(what, &now);
  now.rlim_cur = std::min<rlim_t>(most, now.rlim_max);
  setrlimit(what, &now);
}

// Seconds of processor time, and bytes of private memory that can be written.
void limit_all(u64 seconds, u64 bytes) {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, seconds);
  limit(RLIMIT_DATA, bytes);
#ifdef __linux__
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // nobody would read the result
  int file = open("/proc/self/oom_score_adj", O_WRONLY);  // where memory runs out, this process ends first
  if (file >= 0 && write(file, "1000", 4) == 4) close(file);
#endif
}

// What the library says of a kernel: emulate.py.
struct Told {
  u64 threads, blocks;  // __launch_bounds__
  u8 *shared, *shared_end;
  const Listed *arrays, *arrays_end;
};

struct Words {
  char **next;
  const char *word() { return *next++; }
  u64 number() { return strtoull(word(), nullptr, 10); }
};

struct Process {
  void *library;
  u8 *memory = nullptr;  // the file with all arrays
  Launch all{};          // what is the same for all kernels
  bool placed = false;   // whether the library lists all arrays in shared memory

  void *symbol(const std::string &name) {
    void *found = dlsym(library, name.c_str());
    if (!found) say(std::string("ended|") + dlerror() + "\n"), _exit(1);
    image_of = found;
    return found;
  }

  Told told(const std::string &kernel) {
    Told found;
    ((void (*)(Told *))symbol("tir_told_" + kernel))(&found);
    return found;
  }

  void tell(const std::string &kernel) {
    Told k = told(kernel);
    u64 sizes[2] = {0, 0};  // of what is declared, and of what comes at launch
    for (const Listed *a = k.arrays; a != k.arrays_end; a++) sizes[a->at_launch != 0] += a->size;
    std::string line = "told";
    for (u64 n : {k.threads, k.blocks, sizes[1], sizes[0]}) line += "|" + std::to_string(n);
    say(line + "\n");
  }

  void launch(Words &words) {
    std::string name = words.word();
    Told k = told(name);
    Launch how = all;
    how.entry = (void (*)(void **))symbol("tir_entry_" + name);
    for (unsigned *n : {&how.grid.x, &how.grid.y, &how.grid.z, &how.block.x, &how.block.y, &how.block.z})
      *n = (unsigned)words.number();
    how.cluster = (int)words.number();
    how.begins = (int)words.number();
    std::vector<void *> arguments;
    for (u64 left = words.number(); left; left--) arguments.push_back(memory + words.number());
    how.arguments = arguments.data();
    how.shared = k.shared;
    how.shared_size = (u64)(k.shared_end - k.shared);
    how.arrays = k.arrays;
    how.count = placed ? (u64)(k.arrays_end - k.arrays) : 0;
    launch_kernel(how);
  }

  void run(Words words) {
    while (*words.next) {
      std::string what = words.word();
      if (what == "tell") {
        tell(words.word());
      } else if (what == "memory") {  // a file, and its bytes
        int file = (int)words.number();
        u64 size = words.number();
        memory = (u8 *)mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (memory == MAP_FAILED) say("ended|no memory for the arrays\n"), _exit(1);
        close(file);
      } else if (what == "all") {
        all.granule = (int)words.number();
        all.own = words.number();
        all.eager = words.number() != 0;
        all.seed = words.number();
        placed = words.number() != 0;
      } else if (what == "array") {  // its name, place, bytes, and whether kernels write it
        const char *name = words.word();
        u8 *first = memory + words.number();
        u64 size = words.number();
        watch_array(first, size, name, words.number() != 0, all.granule);
      } else if (what == "map") {  // the places of a tensor map and of its array, whose address it has
        u8 *map = memory + words.number();
        const u8 *array = memory + words.number();
        std::memcpy(map + 16, &array, 8);
      } else {  // "launch"
        launch(words);
      }
    }
  }

  void say_all() {
    std::string text;
    for (const std::string &p : W.problems) text += "problem|" + p + "\n";
    for (const Global &b : W.globals)
      if (b.writable)  // bytes that no thread wrote
        text += "unwritten|" + b.name + "|" + std::to_string(std::count(b.written.begin(), b.written.end(), 0)) + "\n";
    for (const Site &s : W.sites) {
      text += std::string("site|") + place(s.at) + "|" + ACCESS[s.kind];
      for (u64 n : {(u64)s.width, s.requests, s.lanes, s.units, s.ideal}) text += "|" + std::to_string(n);
      text += "\n";
    }
    say(text + "done\n");
  }
};

}  // namespace

// LIBRARY SECONDS BYTES, then what is to be done, in order: Process::run.
int main(int, char **given) {
  told_to = dup(1);
  dup2(2, 1);
  Words words{given + 1};
  const char *path = words.word();
  u64 seconds = words.number();
  limit_all(seconds, words.number());
  catch_signals();
  Process process{dlopen(path, RTLD_NOW)};
  if (!process.library) say(std::string("ended|") + dlerror() + "\n"), _exit(1);
  process.run(words);
  process.say_all();
  _exit(0);  // what the text has registered for the end is not run
}

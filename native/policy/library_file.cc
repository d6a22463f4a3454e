// ELF describes a file twice: by segments for the loader and by sections for tools. If the file is damaged, the two
// contradict each other. The contents of sections (code, names, symbols) are not checked, except what dlopen follows to
// find them.
#include "native/policy/library_file.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace weft::policy {
namespace {

constexpr const char* kNoPolicy = "it is not a compiled policy (weft policy compile FILE.py makes one)";
constexpr const char* kDamaged = "it is damaged or cut short: compile it again (weft policy compile FILE.py)";
constexpr const char* kForeign = "it is compiled for another machine: compile it here (weft policy compile FILE.py)";
constexpr off_t kFileBytesMax = 64 << 20;
constexpr Elf64_Xword kMemoryBytesMax = 1u << 30;

#if defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
constexpr Elf64_Xword kRelative = R_AARCH64_RELATIVE;
#else
constexpr Elf64_Half kMachine = EM_X86_64;
constexpr Elf64_Xword kRelative = R_X86_64_RELATIVE;
#endif

// A dynamic entry that holds an address: its tag, the tag of the entry with its size, and the type that the section at
// this address must have.
struct Place {
  Elf64_Sxword tag, size_tag;
  Elf64_Word section;
};
constexpr Place kPlaces[] = {
    {DT_STRTAB, DT_STRSZ, SHT_STRTAB},
    {DT_SYMTAB, DT_NULL, SHT_DYNSYM},
    {DT_HASH, DT_NULL, SHT_HASH},
    {DT_GNU_HASH, DT_NULL, SHT_GNU_HASH},
    {DT_RELA, DT_RELASZ, SHT_RELA},
    {DT_JMPREL, DT_PLTRELSZ, SHT_RELA},
    {DT_INIT, DT_NULL, SHT_PROGBITS},
    {DT_FINI, DT_NULL, SHT_PROGBITS},
    {DT_PLTGOT, DT_NULL, SHT_PROGBITS},
    {DT_INIT_ARRAY, DT_INIT_ARRAYSZ, SHT_INIT_ARRAY},
    {DT_FINI_ARRAY, DT_FINI_ARRAYSZ, SHT_FINI_ARRAY},
    {DT_VERSYM, DT_NULL, SHT_GNU_versym},
    {DT_VERNEED, DT_NULL, SHT_GNU_verneed},
    {DT_VERDEF, DT_NULL, SHT_GNU_verdef},
    {DT_RELR, DT_RELRSZ, SHT_RELR},
};
// Values that dynamic entries must have, because the dynamic loader asserts them.
constexpr std::pair<Elf64_Sxword, Elf64_Xword> kFixed[] = {{DT_RELAENT, sizeof(Elf64_Rela)},
                                                           {DT_SYMENT, sizeof(Elf64_Sym)},
                                                           {DT_PLTREL, DT_RELA},
                                                           {DT_RELRENT, sizeof(Elf64_Xword)}};
constexpr Elf64_Sxword kNames[] = {DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH};
// Dynamic entries that do not refer to other parts of the file.
constexpr Elf64_Sxword kPlain[] = {DT_SYMBOLIC, DT_DEBUG,      DT_BIND_NOW,  DT_FLAGS,
                                   DT_FLAGS_1,  DT_VERNEEDNUM, DT_VERDEFNUM, DT_RELACOUNT};

struct Range {
  Elf64_Xword from = 0, bytes = 0;
  bool inside(Elf64_Xword start, Elf64_Xword size) const {
    return from >= start && from - start <= size && bytes <= size - (from - start);
  }
};

class Image {
 public:
  explicit Image(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::string complaint() {
    if (bytes_.size() < SELFMAG || std::memcmp(bytes_.data(), ELFMAG, SELFMAG) != 0) return kNoPolicy;
    if (bytes_.size() < sizeof head_) return kDamaged;
    std::memcpy(&head_, bytes_.data(), sizeof head_);
    if (head_.e_ident[EI_CLASS] != ELFCLASS64 || head_.e_ident[EI_DATA] != ELFDATA2LSB || head_.e_machine != kMachine)
      return kForeign;
    if (head_.e_type != ET_DYN) return kNoPolicy;
    if (head_.e_phentsize != sizeof(Elf64_Phdr) || head_.e_shentsize != sizeof(Elf64_Shdr)) return kDamaged;
    const bool whole = read_table(head_.e_phoff, head_.e_phnum, &segments_) &&
                       read_table(head_.e_shoff, head_.e_shnum, &sections_) && segments_fit() && sections_fit() &&
                       marks_fit() && read_dynamic() && dynamic_fits() && relocations_fit();
    return whole ? "" : kDamaged;
  }

 private:
  template <typename Entry>
  bool read_table(Elf64_Off at, std::size_t count, std::vector<Entry>* out) const {
    if (!Range{at, count * sizeof(Entry)}.inside(0, bytes_.size()) || count == 0) return false;
    out->resize(count);
    std::memcpy(out->data(), bytes_.data() + at, count * sizeof(Entry));
    return true;
  }

  // Checks the segments that are mapped: they must lie in the file, be in order, not overlap, and have a plausible
  // size.
  bool segments_fit() {
    Elf64_Addr end = 0;
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_LOAD) continue;
      if (!Range{segment.p_offset, segment.p_filesz}.inside(0, bytes_.size())) return false;
      if (segment.p_filesz > segment.p_memsz || (segment.p_flags & PF_R) == 0 || segment.p_vaddr < end) return false;
      if (!Range{segment.p_vaddr, segment.p_memsz}.inside(0, kMemoryBytesMax)) return false;
      end = segment.p_vaddr + segment.p_memsz;
    }
    return end != 0;
  }

  const Elf64_Phdr* segment_of(Range memory) const {
    const auto found = std::find_if(segments_.begin(), segments_.end(), [&](const Elf64_Phdr& segment) {
      return segment.p_type == PT_LOAD && memory.inside(segment.p_vaddr, segment.p_memsz);
    });
    return found == segments_.end() ? nullptr : &*found;
  }

  // Whether this range of the file is mapped at `address` with the access rights `rights`.
  bool mapped(Elf64_Off offset, Elf64_Addr address, Elf64_Xword bytes, Elf64_Word rights) const {
    const Elf64_Phdr* segment = segment_of({address, bytes});
    return segment != nullptr && (segment->p_flags & rights) == rights &&
           Range{address, bytes}.inside(segment->p_vaddr, segment->p_filesz) &&
           address - segment->p_vaddr == offset - segment->p_offset;
  }

  bool sections_fit() const {
    return std::all_of(sections_.begin(), sections_.end(), [&](const Elf64_Shdr& section) {
      if (section.sh_type == SHT_NULL) return true;
      const bool in_file = section.sh_type != SHT_NOBITS;
      if (in_file && !Range{section.sh_offset, section.sh_size}.inside(0, bytes_.size())) return false;
      if ((section.sh_flags & SHF_ALLOC) == 0 || section.sh_size == 0) return true;
      if (!in_file) {
        return (section.sh_flags & SHF_TLS) != 0 || segment_of({section.sh_addr, section.sh_size}) != nullptr;
      }
      const Elf64_Word rights = PF_R | ((section.sh_flags & SHF_WRITE) != 0 ? PF_W : 0u) |
                                ((section.sh_flags & SHF_EXECINSTR) != 0 ? PF_X : 0u);
      return mapped(section.sh_offset, section.sh_addr, section.sh_size, rights);
    });
  }

  const Elf64_Shdr* section_at(Elf64_Addr address, Elf64_Word type) const {
    const auto found = std::find_if(sections_.begin(), sections_.end(), [&](const Elf64_Shdr& section) {
      return section.sh_type == type && section.sh_addr == address && (section.sh_flags & SHF_ALLOC) != 0;
    });
    return found == sections_.end() ? nullptr : &*found;
  }

  // Checks the segments that describe parts of mapped segments.
  bool marks_fit() const {
    return std::all_of(segments_.begin(), segments_.end(), [&](const Elf64_Phdr& segment) {
      switch (segment.p_type) {
        case PT_LOAD:
        case PT_NULL:
          return true;
        case PT_GNU_STACK:
          return (segment.p_flags & PF_X) == 0;
        case PT_PHDR:
          return segment.p_offset == head_.e_phoff && mapped(segment.p_offset, segment.p_vaddr, segment.p_filesz, PF_R);
        case PT_DYNAMIC:
          return section_at(segment.p_vaddr, SHT_DYNAMIC) != nullptr &&
                 mapped(segment.p_offset, segment.p_vaddr, segment.p_filesz, PF_R | PF_W);
        case PT_NOTE:
        case PT_GNU_PROPERTY:
          return section_at(segment.p_vaddr, SHT_NOTE) != nullptr &&
                 mapped(segment.p_offset, segment.p_vaddr, segment.p_filesz, PF_R);
        case PT_GNU_RELRO: {
          const Elf64_Phdr* within = segment_of({segment.p_vaddr, segment.p_filesz});
          return within != nullptr && (within->p_flags & PF_W) != 0 &&
                 segment.p_memsz <=
                     ((within->p_vaddr + within->p_memsz - segment.p_vaddr + 0xFFF) & ~Elf64_Xword{0xFFF});
        }
        case PT_TLS:
          return segment.p_memsz >= segment.p_filesz && segment.p_align <= 4096 && has_tls() &&
                 mapped(segment.p_offset, segment.p_vaddr, segment.p_filesz, PF_R);
        case PT_GNU_EH_FRAME:
        case PT_INTERP:
          return mapped(segment.p_offset, segment.p_vaddr, segment.p_filesz, PF_R);
        default:
          return false;
      }
    });
  }

  bool has_tls() const {
    return std::any_of(sections_.begin(), sections_.end(),
                       [](const Elf64_Shdr& section) { return (section.sh_flags & SHF_TLS) != 0; });
  }

  bool read_dynamic() {
    for (const Elf64_Phdr& segment : segments_) {
      if (segment.p_type != PT_DYNAMIC) continue;
      const std::size_t count = segment.p_filesz / sizeof(Elf64_Dyn);
      if (!dynamic_.empty() || !read_table(segment.p_offset, count, &dynamic_)) return false;
      const Elf64_Shdr* section = section_at(segment.p_vaddr, SHT_DYNAMIC);
      if (section->sh_size != segment.p_filesz) return false;
      const auto end =
          std::find_if(dynamic_.begin(), dynamic_.end(), [](auto& entry) { return entry.d_tag == DT_NULL; });
      if (end == dynamic_.end()) return false;
      dynamic_.erase(end, dynamic_.end());
    }
    return !dynamic_.empty();
  }

  const Elf64_Xword* entry(Elf64_Sxword tag) const {
    const auto found = std::find_if(dynamic_.begin(), dynamic_.end(), [&](auto& one) { return one.d_tag == tag; });
    return found == dynamic_.end() ? nullptr : &found->d_un.d_val;
  }

  bool dynamic_fits() const {
    if (entry(DT_STRTAB) == nullptr || entry(DT_SYMTAB) == nullptr || entry(DT_STRSZ) == nullptr) return false;
    if (entry(DT_HASH) == nullptr && entry(DT_GNU_HASH) == nullptr) return false;
    return std::all_of(dynamic_.begin(), dynamic_.end(), [&](const Elf64_Dyn& one) {
      const Elf64_Xword value = one.d_un.d_val;
      for (const auto& [tag, fixed] : kFixed) {
        if (one.d_tag == tag) return value == fixed;
      }
      for (const Place& place : kPlaces) {
        if (one.d_tag == place.tag) return place_fits(place, value);
        if (one.d_tag == place.size_tag) return entry(place.tag) != nullptr;
      }
      if (std::find(std::begin(kNames), std::end(kNames), one.d_tag) != std::end(kNames)) {
        return value < *entry(DT_STRSZ);
      }
      return std::find(std::begin(kPlain), std::end(kPlain), one.d_tag) != std::end(kPlain);
    });
  }

  bool place_fits(const Place& place, Elf64_Addr address) const {
    const Elf64_Shdr* section = section_at(address, place.section);
    if (section == nullptr) return false;
    const Elf64_Xword* bytes = place.size_tag == DT_NULL ? nullptr : entry(place.size_tag);
    return place.size_tag == DT_NULL || (bytes != nullptr && *bytes == section->sh_size);
  }

  // Checks that the loader knows all relocation sections (it would not relocate others), and that the first
  // DT_RELACOUNT relocations are relative.
  bool relocations_fit() const {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_RELA || (section.sh_flags & SHF_ALLOC) == 0) continue;
      const auto named = [&](Elf64_Sxword tag) { return entry(tag) != nullptr && *entry(tag) == section.sh_addr; };
      if (!named(DT_RELA) && !named(DT_JMPREL)) return false;
    }
    const Elf64_Xword* table = entry(DT_RELA);
    if (table == nullptr) return entry(DT_RELACOUNT) == nullptr;
    if (entry(DT_RELAENT) == nullptr) return false;
    std::vector<Elf64_Rela> relocations;
    const Elf64_Shdr* section = section_at(*table, SHT_RELA);
    if (!read_table(section->sh_offset, section->sh_size / sizeof(Elf64_Rela), &relocations)) return false;
    const Elf64_Xword relative = entry(DT_RELACOUNT) == nullptr ? 0 : *entry(DT_RELACOUNT);
    return relative <= relocations.size() &&
           std::all_of(relocations.begin(), relocations.begin() + static_cast<std::ptrdiff_t>(relative),
                       [](const Elf64_Rela& one) { return ELF64_R_TYPE(one.r_info) == kRelative; });
  }

  std::span<const std::byte> bytes_;
  Elf64_Ehdr head_{};
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Dyn> dynamic_;
};

std::string read_file(int file, std::vector<std::byte>* out) {
  struct stat found{};
  if (::fstat(file, &found) != 0) return std::strerror(errno);
  if (!S_ISREG(found.st_mode) || found.st_size > kFileBytesMax) return kNoPolicy;
  out->resize(static_cast<std::size_t>(found.st_size));
  for (std::size_t at = 0; at < out->size();) {
    const ssize_t read = ::read(file, out->data() + at, out->size() - at);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0) return std::strerror(errno);
    if (read == 0) return kDamaged;  // the file was truncated while it was read
    at += static_cast<std::size_t>(read);
  }
  return "";
}

}  // namespace

std::string image_complaint(std::span<const std::byte> image) { return Image(image).complaint(); }

std::string file_complaint(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::strerror(errno);
  std::vector<std::byte> image;
  std::string wrong = read_file(file, &image);
  ::close(file);
  return wrong.empty() ? image_complaint(image) : wrong;
}

}  // namespace weft::policy

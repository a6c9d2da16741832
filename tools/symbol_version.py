"""Binds std::condition_variable::wait of ELF files to its older version.

GCC 12 gave this one function a second version, GLIBCXX_3.4.30, in which it
may be left by the cancellation of a thread; the first, GLIBCXX_3.4.11, is in
every libstdc++ since GCC 4.4 and stays there. Nothing here cancels threads.
With the first version a file runs where libstdc++ is that of GCC 11: RHEL 9.
"""

import struct

from elftools.elf.elffile import ELFFile

WAIT = "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE"
NEW, OLD = "GLIBCXX_3.4.30", "GLIBCXX_3.4.11"

# Elf64_Vernaux: hash, flags, index, name, offset of the next.
_AUXILIARY = struct.Struct("<IHHII")


def _needed_versions(elf):
    """Yields (library, version, place in the file, index) of what it needs."""
    section = elf.get_section_by_name(".gnu.version_r")
    if section is None:
        return
    place = section["sh_offset"]
    for library, versions in section.iter_versions():
        entry = place + library["vn_aux"]
        for version in versions:
            yield library.name, version.name, entry, version["vna_other"]
            entry += version["vna_next"]
        place += library["vn_next"]


def _symbols_of(elf, index):
    """Returns the symbols that are needed in the version of this index."""
    symbols = elf.get_section_by_name(".dynsym")
    versions = elf.get_section_by_name(".gnu.version")
    return {
        symbols.get_symbol(number).name
        for number in range(symbols.num_symbols())
        if versions.get_symbol(number)["ndx"] == index
    }


def bind_to_older(path):
    """Changes the file, if it needs the newer version; returns whether it did.

    Raises ValueError if another function is needed in that version, too: then
    the file does not run with an older libstdc++.
    """
    with open(path, "r+b") as file:
        elf = ELFFile(file)
        places = {
            version: (place, index)
            for library, version, place, index in _needed_versions(elf)
            if library == "libstdc++.so.6"
        }
        if NEW not in places:
            return False
        others = _symbols_of(elf, places[NEW][1]) - {WAIT}
        if others or OLD not in places:
            raise ValueError(
                "%s needs %s of libstdc++ %s, which has no older version to "
                "take its place" % (path, NEW, sorted(others) or "without "
                                    + OLD)
            )

        def read(place):
            file.seek(place)
            return _AUXILIARY.unpack(file.read(_AUXILIARY.size))

        hashed, _, _, name, _ = read(places[OLD][0])
        _, flags, index, _, following = read(places[NEW][0])
        file.seek(places[NEW][0])
        file.write(_AUXILIARY.pack(hashed, flags, index, name, following))
    return True

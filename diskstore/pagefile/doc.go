/*
Package pagefile reads and writes the bytes of one page file.

A page holds the K/V rows of consecutive tokens, for all layers. Its Key is a hash of the
parent's key and of the page's own tokens; see ChainKey. Its Name is its place in a store:
the fingerprint, the class, the key. A Layout places the sections of a page, one for each
kind of rows of each layer, in one buffer.

Encode turns a Page into a file and compresses each section that becomes smaller.
ReadHeader, then ReadPayload, decode some sections of a file or all of them. A Checker
checks a whole file in little memory and keeps nothing of the file; Stream does the same
for a file that is copied. All of them take a Source: a file on a disk, on a network, or
inside an archive.

Every byte of a file is checked before rows of the file are returned: ErrDamaged reports
bytes other than the bytes that were written, ErrMismatch a good page other than the
requested one.

format.go documents the format. The package opens no file and has no I/O policy.
*/
package pagefile

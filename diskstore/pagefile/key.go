package pagefile

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// Key is a page's name, or a fingerprint: the key of the empty chain.
type Key [32]byte

// String returns the key as 64 lower-case hex digits.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// IsZero reports whether k is all zeros. No page and no usable fingerprint is all zeros.
func (k Key) IsZero() bool { return k == Key{} }

// ColdFingerprint returns the fingerprint under which lossy pages are stored for a fingerprint of
// exact pages: SHA-256("kvtier cold pages" ‖ fingerprint). A look-up of exact pages never finds a
// lossy one. Key and parent of a lossy page are those of the exact page.
func ColdFingerprint(fingerprint Key) Key {
	return sha256.Sum256(append([]byte("kvtier cold pages"), fingerprint[:]...))
}

// ParseKey is the inverse of Key.String. ParseKey accepts exactly 64 lower-case hex digits, so
// that every key has one file name.
func ParseKey(s string) (Key, error) {
	var k Key
	if len(s) != 2*len(k) {
		return Key{}, fmt.Errorf("diskstore: parse key %q: want %d hex digits, have %d", s, 2*len(k), len(s))
	}
	if _, err := hex.Decode(k[:], []byte(s)); err != nil {
		return Key{}, fmt.Errorf("diskstore: parse key %q: %w", s, err)
	}
	if k.String() != s {
		return Key{}, fmt.Errorf("diskstore: parse key %q: want lower-case hex digits", s)
	}
	return k, nil
}

// Media is an image or audio clip. Offset is the position of its first token: in a Page and in ChainKey
// counted from the page's first token, in a diskstore.Prompt from position 0 of the sequence.
type Media struct {
	Offset uint32
	Hash   [32]byte // of the content, never a process-seeded hash
}

// ChainKey returns the key of the page that follows parent:
//
//	SHA-256(parent ‖ tokens, int32 LE each ‖ media, offset uint32 LE and hash each ‖
//	        len(tokens) uint32 LE ‖ len(media) uint32 LE)
//
// The parent of a sequence's first page is the fingerprint. The counts at the end ensure that
// no media hash equals token ids.
func ChainKey(parent Key, tokens []int32, media []Media) Key {
	// In steps: the memory for a read of a header is at most twice the file's size.
	le, h := binary.LittleEndian, sha256.New()
	buf := make([]byte, 0, min(len(parent)+4*len(tokens)+mediaBytes*len(media)+8, keyStepBytes))
	room := func(n int) {
		if len(buf)+n > keyStepBytes {
			h.Write(buf)
			buf = buf[:0]
		}
	}
	buf = append(buf, parent[:]...)
	for _, t := range tokens {
		room(4)
		buf = le.AppendUint32(buf, uint32(t))
	}
	for _, m := range media {
		room(mediaBytes)
		buf = le.AppendUint32(buf, m.Offset)
		buf = append(buf, m.Hash[:]...)
	}
	room(8)
	buf = le.AppendUint32(buf, uint32(len(tokens)))
	buf = le.AppendUint32(buf, uint32(len(media)))
	h.Write(buf)
	var key Key
	h.Sum(key[:0])
	return key
}

// keyStepBytes is the number of bytes hashed at once: more than a page of the usual size has.
const keyStepBytes = 2048

// Class is the kind of a file in a tier.
type Class uint8

const (
	ClassPage     Class = iota // a full page
	ClassTail                  // an incomplete last page
	ClassManifest              // a fingerprint's manifest.json
)

// Name identifies a file in every tier.
type Name struct {
	Fingerprint Key
	Class       Class
	Key         Key // zero for a manifest
}

// ColdName returns the name of the lossy page that stands for an exact one.
func ColdName(exact Name) Name {
	exact.Fingerprint = ColdFingerprint(exact.Fingerprint)
	return exact
}

// Name returns the name of the page with this header.
func (h *Header) Name() Name {
	name := Name{Fingerprint: h.Fingerprint, Class: ClassPage, Key: h.Key}
	if h.Tail() {
		name.Class = ClassTail
	}
	return name
}

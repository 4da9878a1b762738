package why

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvtier/kvtier/telemetry"
)

// Unread is why stored pages of a prompt were not used.
type Unread uint8

// Reasons.
const (
	UnreadNone    Unread = iota // all that were found were used
	UnreadQuicker               // computing was quicker, or a restore was given up for that reason
	UnreadDamaged               // a page could not be read, or was another one
	UnreadDown                  // the tier failed, or did not answer in time
	UnreadRoom                  // the cache had no room
	UnreadState                 // a window or a state is stored for an earlier position only
)

// Tombstone tells of a page that was evicted.
type Tombstone struct {
	When   time.Time
	From   string // the tier
	Reason string // in words
}

// Other is a chain of the prompt's pages under another fingerprint.
type Other struct {
	Tokens int // leading tokens of the prompt that are stored
	// Differs are the fields of the identity that differ, and the value tells how, such as
	// "q8_0, not f16"; "" for a field that is only named.
	Differs map[string]string
}

// Facts describe a prompt after its restore, as far as known. The zero value of a field means that
// nothing of the kind is known.
type Facts struct {
	Tokens int // of the prompt
	Held   int // leading tokens that were not computed: in the slot, or restored
	Page   int // tokens of a page

	// Found counts the leading tokens that were found stored or in the slot, Unread says why those
	// behind Held were not used, and Tier from where they would have come.
	Found  int
	Unread Unread
	Tier   string
	// Parted: the store has a page that begins like the prompt's next one and goes on with other tokens.
	Parted bool

	// The page with the first token that was not restored.
	Damaged   bool       // set aside, or known to be damaged
	Queued    bool       // waits to be written
	Slot      bool       // a slot has its rows, and they are not stored yet
	Tombstone *Tombstone // was evicted
	Given     string     // was computed and could not be stored: the reason, in words

	// Nameless is the position of the first image without identity, plus 1; 0 without one.
	Nameless int

	Similar Similar
	Others  []Other
	Down    []string // tiers that do not answer, or take no pages
}

// Explain returns why a prompt computed more than its last token; nil if it did not. See the order
// in the package's documentation.
func Explain(f Facts) *telemetry.Miss {
	if f.Held >= f.Tokens-1 {
		return nil
	}
	m := &telemetry.Miss{At: f.Held}
	if f.explainedBy(m, proofs) || f.explainedBy(m, guesses) {
		return m
	}
	m.Cause = telemetry.CauseNeverSeen
	if f.Similar.Prompts == 0 && m.Detail == "" {
		m.Detail = "the first prompt of this process"
	}
	return m
}

// explanation reports whether it explains the facts, and how.
type explanation func(*Facts, *telemetry.Miss) bool

var (
	proofs  = []explanation{unread, storedOnce, computedOnce, changed, goesOn}
	guesses = []explanation{elsewhere, down, differs}
)

func (f *Facts) explainedBy(m *telemetry.Miss, these []explanation) bool {
	return slices.ContainsFunc(these, func(explains explanation) bool { return explains(f, m) })
}

// Open reports whether other identities (Facts.Others), whose look-up takes a while, may be the
// cause: nothing proves another one.
func Open(f Facts) bool {
	return f.Held < f.Tokens-1 && !f.explainedBy(new(telemetry.Miss), proofs)
}

// Unused reports whether the cause lies in pages that were found and not used, so that nothing else
// need be looked up.
func Unused(f Facts) bool { return unread(&f, new(telemetry.Miss)) }

func unread(f *Facts, m *telemetry.Miss) bool {
	if f.Found <= f.Held {
		return false
	}
	stored := fmt.Sprintf("%d tokens were found", f.Found)
	if f.Tier != "" {
		stored += ", those not used in " + f.Tier
	}
	m.Detail = stored
	switch f.Unread {
	case UnreadQuicker:
		m.Cause = telemetry.CauseQuicker
	case UnreadRoom:
		m.Cause, m.Detail = telemetry.CauseQuicker, stored+"; the engine's cache had no room for them"
	case UnreadDamaged:
		m.Cause = telemetry.CauseDamaged
	case UnreadDown:
		m.Cause = telemetry.CauseTierDown
	case UnreadState:
		m.Detail = stored + ", the model's state or window at an earlier position only"
		return false // and the rest is computed because of the first token that is not stored
	default:
		m.Detail = ""
		return false
	}
	return true
}

// At is the position that is explained: where only the state at it is missing, that of the first
// token that is not stored.
func (f *Facts) At() int {
	if f.Unread == UnreadState {
		return max(f.Held, f.Found)
	}
	return f.Held
}

// storedOnce explains tokens whose page was stored, or is about to be.
func storedOnce(f *Facts, m *telemetry.Miss) bool {
	switch {
	case f.Damaged:
		m.Cause = telemetry.CauseDamaged
	case f.Queued:
		m.Cause = telemetry.CauseWriting
	case f.Tombstone != nil:
		m.Cause, m.When, m.From, m.Detail = telemetry.CauseEvicted, f.Tombstone.When, f.Tombstone.From, f.Tombstone.Reason
	case f.Given != "":
		m.Cause, m.From, m.Detail = telemetry.CauseEvicted, telemetry.PlaceSlot, "it was never stored: "+f.Given
	case f.Similar.Underway && !f.Similar.Seen:
		m.Cause, m.Detail = telemetry.CauseWriting, "another request computes it"
	case f.Slot && f.Similar.Fate.Why == FateStored && f.Similar.Private == 0:
		m.Cause, m.Detail = telemetry.CauseWriting, "it waits in the slot of another request"
	default:
		return false
	}
	return true
}

// computedOnce explains tokens whose rows were computed and not stored.
func computedOnce(f *Facts, m *telemetry.Miss) bool {
	fate := f.Similar.Fate
	switch {
	case f.Similar.Private > f.At() && !f.Similar.Seen:
		m.Cause = telemetry.CausePrivate
	case f.Nameless > 0 && f.At()+f.Page > f.Nameless-1: // the mark before it may be computed with it
		m.Cause, m.Detail = telemetry.CauseImage, "the image has no identity outside of its request"
	case !f.Similar.Seen:
		return false
	case fate.Why == FateShift:
		m.Cause, m.Detail = telemetry.CauseShift, fate.Detail
	case fate.Why == FateImage:
		m.Cause, m.Detail = telemetry.CauseImage, "an image before it has no identity outside of its request"
	case fate.Why == FateLossy:
		m.Cause, m.Detail = telemetry.CauseEvicted, "it was computed behind lossy pages, and is stored behind exact ones only"
	case !f.Similar.Whole && f.Similar.Prefix-f.At() < f.Page:
		return false // the rest of the page is other text, and a page may be of no use in part
	case len(f.Down) > 0:
		m.Cause, m.Detail = telemetry.CauseTierDown, strings.Join(f.Down, ", ")
	case f.Similar.Private > f.At():
		m.Cause = telemetry.CausePrivate
	default:
		m.Cause, m.Detail = telemetry.CauseEvicted, "there is no record of when"
	}
	return true
}

func changed(f *Facts, m *telemetry.Miss) bool {
	s := &f.Similar
	switch {
	case s.Whole || s.Prompts == 0 || s.Prefix < f.Held || s.Prefix > f.At()+f.Page:
		return false
	case s.Image:
		m.Cause = telemetry.CauseImage
	case s.Back && s.Prefix >= f.At():
		m.Cause = telemetry.CauseDiffers
	default:
		return false
	}
	m.At, m.Words = s.Prefix, s.Words
	return true
}

// goesOn explains text that begins where everything that is known of it ends.
func goesOn(f *Facts, m *telemetry.Miss) bool {
	s := &f.Similar
	if !s.Whole || !s.Alike || s.Prefix > f.At() || f.At()-s.Prefix >= f.Page {
		return false
	}
	if f.Parted && f.At() > s.Prefix {
		return false // stored text shows the difference
	}
	m.Cause = telemetry.CauseNeverSeen
	if m.Detail == "" {
		m.Detail = "new text behind a prompt that is known"
	}
	return true
}

// identity maps the fields of an identity to causes, the first that differs being the cause.
var identity = []struct {
	field string
	cause telemetry.Cause
}{
	{"weights", telemetry.CauseWeights},
	{"adapters", telemetry.CauseWeights},
	{"cache_type", telemetry.CauseType},
	{"namespace", telemetry.CauseNamespace},
	{"page_tokens", telemetry.CausePageSize},
}

// elsewhere explains tokens that are stored under another identity: the one that differs in the
// fewest fields, and of these the one that has most of the prompt.
func elsewhere(f *Facts, m *telemetry.Miss) bool {
	others := slices.DeleteFunc(slices.Clone(f.Others), func(o Other) bool { return o.Tokens <= f.At() || len(o.Differs) == 0 })
	if len(others) == 0 {
		return false
	}
	o := slices.MinFunc(others, func(a, b Other) int {
		return cmp.Or(len(a.Differs)-len(b.Differs), b.Tokens-a.Tokens)
	})
	m.Cause = telemetry.CauseBuild
	for _, known := range slices.Backward(identity) {
		if _, differs := o.Differs[known.field]; differs {
			m.Cause = known.cause
		}
	}
	m.Detail = fmt.Sprintf("%d tokens are stored with another %s", o.Tokens, fields(o.Differs))
	return true
}

// down explains tokens that may be in a tier that does not answer.
func down(f *Facts, m *telemetry.Miss) bool {
	if len(f.Down) == 0 {
		return false
	}
	m.Cause, m.Detail = telemetry.CauseTierDown, strings.Join(f.Down, ", ")+"; whether it has the text is not known"
	return true
}

// differs explains tokens that part from those of another text.
func differs(f *Facts, m *telemetry.Miss) bool {
	s := &f.Similar
	switch {
	case s.Alike && !s.Whole && s.Prefix >= f.Held && s.Prefix <= f.At()+f.Page:
		m.At, m.Words = s.Prefix, s.Words
	case f.Parted:
		m.At = max(f.Held, f.Found)
		if m.Detail == "" {
			m.Detail = "from stored text"
		}
	default:
		return false
	}
	m.Cause = telemetry.CauseDiffers
	return true
}

// tellable are the fields of an identity whose values are told. Others are digests, or name
// another namespace.
var tellable = map[string]bool{"cache_type": true, "page_tokens": true}

// Bounds of a text about fields. Manifests come from other people, and package collect refuses a
// report with a longer detail, or with one that could control a terminal.
const (
	fieldMax = 32 // bytes of a name, and of a value that is told
	namesMax = 6  // fields that are named
)

// unnamed stands for fields with names that nobody of ours gave.
const unnamed = "property"

// isWord reports whether a text of a manifest may be told.
func isWord(s string) bool {
	return s != "" && len(s) <= fieldMax && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// Differs compares two identities and returns the fields that differ, as in [Other].
func Differs(ours, theirs map[string]string) map[string]string {
	differ := make(map[string]string)
	for _, identity := range []map[string]string{ours, theirs} {
		for field := range identity {
			differ[field] = ""
		}
	}
	strange := false
	for field := range differ {
		switch a, b := ours[field], theirs[field]; {
		case a == b:
			delete(differ, field)
		case !isWord(field):
			delete(differ, field)
			strange = true
		case tellable[field] && isWord(a) && isWord(b):
			differ[field] = b + ", not " + a
		}
	}
	if strange {
		differ[unnamed] = ""
	}
	return differ
}

// fields names the fields that differ, in words and in alphabetical order.
func fields(differ map[string]string) string {
	var names []string
	for _, field := range slices.Sorted(maps.Keys(differ)) {
		name := strings.ReplaceAll(field, "_", " ")
		if values := differ[field]; values != "" {
			name += " (" + values + ")"
		}
		if len(names) == namesMax {
			names = append(names, "and more")
			break
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

package why

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvtier/kvtier/telemetry"
)

// Each situation has one cause, at one position.
func TestExplain(t *testing.T) {
	when := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tombstone := &Tombstone{When: when, From: "local", Reason: "room was needed"}
	other := func(tokens int, fields ...string) Other {
		o := Other{Tokens: tokens, Differs: map[string]string{}}
		for _, field := range fields {
			o.Differs[field] = ""
		}
		return o
	}
	alike := Similar{Prompts: 1, Prefix: 512, Alike: true}
	seen := func(prefix int, fate Fate) Similar {
		return Similar{Prompts: 1, Prefix: prefix, Alike: true, Seen: true, Whole: true, Fate: fate}
	}
	for name, test := range map[string]struct {
		facts  Facts
		cause  telemetry.Cause
		at     int
		detail string
	}{
		"the first prompt": {Facts{}, telemetry.CauseNeverSeen, 0, "the first prompt of this process"},
		"another prompt":   {Facts{Similar: Similar{Prompts: 3, Prefix: 5}}, telemetry.CauseNeverSeen, 0, ""},
		"a chat goes on":   {Facts{Held: 512, Similar: Similar{Prompts: 1, Prefix: 512, Whole: true, Alike: true}}, telemetry.CauseNeverSeen, 512, "new text behind a prompt that is known"},
		"a chat goes on while a tier is down": {
			Facts{Held: 512, Down: []string{"remote"}, Similar: Similar{Prompts: 1, Prefix: 512, Whole: true, Alike: true}}, telemetry.CauseNeverSeen, 512, "new text behind a prompt that is known"},

		"quicker":                     {Facts{Held: 256, Found: 768, Unread: UnreadQuicker, Tier: "remote"}, telemetry.CauseQuicker, 256, "768 tokens were found, those not used in remote"},
		"quicker, and evicted behind": {Facts{Held: 256, Found: 768, Unread: UnreadQuicker, Tombstone: tombstone}, telemetry.CauseQuicker, 256, "768 tokens were found"},
		"no room":                     {Facts{Held: 256, Found: 768, Unread: UnreadRoom}, telemetry.CauseQuicker, 256, "768 tokens were found; the engine's cache had no room for them"},
		"damaged when read":           {Facts{Held: 256, Found: 768, Unread: UnreadDamaged}, telemetry.CauseDamaged, 256, "768 tokens were found"},
		"down when read":              {Facts{Held: 256, Found: 768, Unread: UnreadDown, Tier: "remote"}, telemetry.CauseTierDown, 256, "768 tokens were found, those not used in remote"},

		"damaged":                         {Facts{Held: 256, Damaged: true, Tombstone: tombstone}, telemetry.CauseDamaged, 256, ""},
		"queued":                          {Facts{Held: 256, Queued: true, Tombstone: tombstone}, telemetry.CauseWriting, 256, ""},
		"evicted":                         {Facts{Held: 256, Tombstone: tombstone, Similar: seen(900, Fate{})}, telemetry.CauseEvicted, 256, "room was needed"},
		"evicted, and the text changed":   {Facts{Held: 256, Tombstone: tombstone, Similar: alike}, telemetry.CauseEvicted, 256, "room was needed"},
		"underway":                        {Facts{Similar: Similar{Prompts: 1, Prefix: 900, Alike: true, Underway: true}}, telemetry.CauseWriting, 0, "another request computes it"},
		"in a slot":                       {Facts{Held: 256, Slot: true, Similar: seen(300, Fate{})}, telemetry.CauseWriting, 256, "it waits in the slot of another request"},
		"in a slot, by a private request": {Facts{Slot: true, Similar: Similar{Private: 64}}, telemetry.CausePrivate, 0, ""},

		"private":                      {Facts{Held: 32, Similar: Similar{Private: 64}}, telemetry.CausePrivate, 32, ""},
		"private, up to there":         {Facts{Held: 64, Similar: Similar{Private: 64}}, telemetry.CauseNeverSeen, 64, "the first prompt of this process"},
		"private, and evicted":         {Facts{Held: 32, Tombstone: tombstone, Similar: Similar{Private: 64}}, telemetry.CauseEvicted, 32, "room was needed"},
		"shifted":                      {Facts{Held: 256, Similar: seen(900, Fate{Why: FateShift})}, telemetry.CauseShift, 256, ""},
		"behind lossy pages":           {Facts{Held: 256, Similar: seen(900, Fate{Why: FateLossy})}, telemetry.CauseEvicted, 256, "it was computed behind lossy pages, and is stored behind exact ones only"},
		"moved and shifted":            {Facts{Held: 256, Similar: seen(900, Fate{Why: FateShift, Detail: "moved"})}, telemetry.CauseShift, 256, "moved"},
		"given up":                     {Facts{Held: 256, Given: "the queue was full", Similar: seen(900, Fate{})}, telemetry.CauseEvicted, 256, "it was never stored: the queue was full"},
		"given up, and a tier is down": {Facts{Held: 256, Given: "the queue was full", Down: []string{"remote"}, Similar: seen(900, Fate{})}, telemetry.CauseEvicted, 256, "it was never stored: the queue was full"},
		"gone":                         {Facts{Held: 256, Similar: seen(900, Fate{})}, telemetry.CauseEvicted, 256, "there is no record of when"},
		"a tail is gone":               {Facts{Similar: seen(40, Fate{})}, telemetry.CauseEvicted, 0, "there is no record of when"},
		"moved to a tier that is down": {Facts{Held: 256, Down: []string{"remote"}, Similar: seen(900, Fate{})}, telemetry.CauseTierDown, 256, "remote"},
		"an image without identity":    {Facts{Held: 256, Nameless: 257}, telemetry.CauseImage, 256, "the image has no identity outside of its request"},
		"behind such an image":         {Facts{Held: 256, Similar: seen(900, Fate{Why: FateImage})}, telemetry.CauseImage, 256, "an image before it has no identity outside of its request"},
		"another image":                {Facts{Held: 250, Similar: Similar{Prompts: 1, Prefix: 260, Image: true, Seen: true}}, telemetry.CauseImage, 260, ""},

		"one token differs":                      {Facts{Held: 512, Similar: Similar{Prompts: 1, Prefix: 512, Alike: true, Back: true}}, telemetry.CauseDiffers, 512, ""},
		"one token differs, a tier is down":      {Facts{Held: 512, Down: []string{"remote"}, Similar: Similar{Prompts: 1, Prefix: 512, Alike: true, Back: true}}, telemetry.CauseDiffers, 512, ""},
		"it differs in a page that is no use":    {Facts{Held: 512, Similar: Similar{Prompts: 1, Prefix: 600, Alike: true, Seen: true}}, telemetry.CauseDiffers, 600, ""},
		"the end differs":                        {Facts{Held: 512, Similar: alike}, telemetry.CauseDiffers, 512, ""},
		"the end differs, a tier is down":        {Facts{Held: 512, Similar: alike, Down: []string{"remote"}}, telemetry.CauseTierDown, 512, "remote; whether it has the text is not known"},
		"stored text differs":                    {Facts{Held: 700, Found: 700, Parted: true, Similar: alike}, telemetry.CauseDiffers, 700, "from stored text"},
		"a recent prompt differs far behind it":  {Facts{Held: 0, Similar: alike}, telemetry.CauseNeverSeen, 0, ""},
		"a recent prompt differs far before it":  {Facts{Held: 900, Similar: alike}, telemetry.CauseNeverSeen, 900, ""},
		"a state at an earlier position, new":    {Facts{Held: 256, Found: 600, Unread: UnreadState, Similar: Similar{Prompts: 1, Prefix: 600, Whole: true, Alike: true}}, telemetry.CauseNeverSeen, 256, "600 tokens were found, the model's state or window at an earlier position only"},
		"a state at an earlier position":         {Facts{Held: 256, Found: 600, Unread: UnreadState, Similar: Similar{Prompts: 1, Prefix: 600, Alike: true}}, telemetry.CauseDiffers, 600, "600 tokens were found, the model's state or window at an earlier position only"},
		"a state at an earlier position, parted": {Facts{Held: 256, Found: 600, Unread: UnreadState, Parted: true}, telemetry.CauseDiffers, 600, "600 tokens were found, the model's state or window at an earlier position only"},

		"weights":                {Facts{Others: []Other{other(512, "weights", "engine")}}, telemetry.CauseWeights, 0, "512 tokens are stored with another engine, weights"},
		"adapters":               {Facts{Others: []Other{other(512, "adapters")}}, telemetry.CauseWeights, 0, "512 tokens are stored with another adapters"},
		"cache type":             {Facts{Others: []Other{other(512, "cache_type", "numerics")}}, telemetry.CauseType, 0, "512 tokens are stored with another cache type, numerics"},
		"build":                  {Facts{Others: []Other{other(512, "engine")}}, telemetry.CauseBuild, 0, "512 tokens are stored with another engine"},
		"devices":                {Facts{Others: []Other{other(512, "numerics")}}, telemetry.CauseBuild, 0, "512 tokens are stored with another numerics"},
		"namespace":              {Facts{Others: []Other{other(512, "namespace")}}, telemetry.CauseNamespace, 0, "512 tokens are stored with another namespace"},
		"page size":              {Facts{Others: []Other{other(512, "page_tokens")}}, telemetry.CausePageSize, 0, "512 tokens are stored with another page tokens"},
		"the nearest":            {Facts{Others: []Other{other(900, "weights", "engine"), other(512, "cache_type"), other(600, "cache_type")}}, telemetry.CauseType, 0, "600 tokens are stored with another cache type"},
		"not so far":             {Facts{Held: 512, Others: []Other{other(512, "cache_type")}}, telemetry.CauseNeverSeen, 512, "the first prompt of this process"},
		"elsewhere, and alike":   {Facts{Held: 512, Similar: alike, Others: []Other{other(768, "engine")}}, telemetry.CauseBuild, 512, "768 tokens are stored with another engine"},
		"a tier is down":         {Facts{Down: []string{"remote"}}, telemetry.CauseTierDown, 0, "remote; whether it has the text is not known"},
		"elsewhere, and it's up": {Facts{Down: []string{"remote"}, Others: []Other{other(768, "engine")}}, telemetry.CauseBuild, 0, "768 tokens are stored with another engine"},
	} {
		t.Run(name, func(t *testing.T) {
			test.facts.Tokens, test.facts.Page = 1000, 256
			m := Explain(test.facts)
			require.NotNil(t, m)
			require.Equal(t, test.cause, m.Cause)
			require.Equal(t, test.at, m.At)
			require.Equal(t, test.detail, m.Detail)
			require.Contains(t, telemetry.Causes, m.Cause.Explain())
			require.Equal(t, test.cause == telemetry.CauseEvicted && test.facts.Tombstone != nil, !m.When.IsZero())
			require.LessOrEqual(t, len(m.Detail), telemetry.NameBytesMax)
			if len(test.facts.Others) > 0 {
				require.True(t, Open(test.facts), "or nobody looks for others")
			}
		})
	}
}

// A prompt of which only the last token is computed has no miss, even with a damaged page.
func TestExplainNothing(t *testing.T) {
	for tokens := range 3 {
		require.Nil(t, Explain(Facts{Tokens: tokens, Held: tokens - 1, Damaged: true}))
		require.Nil(t, Explain(Facts{Tokens: tokens, Held: tokens}))
	}
	require.NotNil(t, Explain(Facts{Tokens: 2}))
}

// Values are told of fields that name no person and no file.
func TestDiffers(t *testing.T) {
	ours := map[string]string{"cache_type": "f16", "namespace": "me", "weights": "aa", "schema": "1"}
	theirs := map[string]string{"cache_type": "q8_0", "namespace": "secret", "weights": "bb", "schema": "1", "shape": "x"}
	differ := Differs(ours, theirs)
	require.Equal(t, map[string]string{"cache_type": "q8_0, not f16", "namespace": "", "weights": "", "shape": ""}, differ)
	require.Equal(t, "cache type (q8_0, not f16), namespace, shape, weights", fields(differ))
	require.Empty(t, Differs(ours, ours))
}

// TestHostileIdentity: manifests of other people make no text that package collect refuses, since a
// refused report loses all of the process's counts.
func TestHostileIdentity(t *testing.T) {
	ours := map[string]string{"weights": "a", "cache_type": "f16", "engine": "x"}
	theirs := map[string]string{"weights": "b", "cache_type": "q8\x1b[2J", strings.Repeat("x", 1<<16): "1", "new\nline": "1", "": "1"}
	for i := range 1000 {
		theirs[strings.Repeat("f", 20)+strconv.Itoa(i)] = "1"
	}
	m := Explain(Facts{Tokens: 4096, Page: 256, Others: []Other{{Tokens: 4096, Differs: Differs(ours, theirs)}}})
	require.Equal(t, telemetry.CauseWeights, m.Cause)
	require.LessOrEqual(t, len(m.Detail), telemetry.NameBytesMax)
	require.NotRegexp(t, `[^ -~]`, m.Detail)

	differ := Differs(map[string]string{}, map[string]string{"\x1b": "1"})
	require.Equal(t, map[string]string{"property": ""}, differ, "it differs nevertheless")
}

package valkey

import (
	"strconv"

	"github.com/valkey-io/valkey-go"

	"github.com/kvtier/kvtier/diskstore/pagefile"
	"github.com/kvtier/kvtier/diskstore/tier"
)

// partBytes is the length of the strings that hold a page. One and its header fill the 1 MiB that an
// allocator such as jemalloc gives them; a string of 1 MiB would take 1.25.
const partBytes = 1<<20 - 64

// parts is the number of parts of a page.
func parts(bytes int64) int64 { return (bytes + partBytes - 1) / partBytes }

// script is a text in Lua. A script runs alone on the server: nothing happens in the middle of it. When
// memory is full, the first write ends the script, and nothing is written.
type script string

// whenFull begins a script that runs when memory is full, as it needs little or frees more.
const whenFull = "#!lua flags=allow-oom\n"

// onPages begins all scripts on pages. KEYS are pages, and ARGV[1] is the prefix.
var onPages = script(`
local prefix, partBytes = ARGV[1], ` + strconv.Itoa(partBytes) + `

local function look(page)
	local bytes, used, id = unpack(redis.call('HMGET', page, 'bytes', 'used', 'id'))
	return tonumber(bytes) and id, bytes, used
end

-- all runs a command on all parts and returns the sum of the answers.
local function all(command, id, bytes, ...)
	local sum = 0
	for i = 0, math.ceil(bytes / partBytes) - 1 do
		sum = sum + redis.call(command, prefix .. 'part:' .. id .. ':' .. i, ...)
	end
	return sum
end

local function whole(command, id, bytes)
	return all(command, id, bytes) == math.ceil(bytes / partBytes)
end

local function shardOf(page)
	local class, fingerprint, first, rest = string.match(string.sub(page, #prefix + 1), '^(%a+):(%x+):(%x%x)(%x+)$')
	return class .. ':' .. fingerprint .. ':' .. first, first .. rest
end

local function list(page)
	local shard, key = shardOf(page)
	redis.call('SADD', prefix .. 'shard:' .. shard, key)
	redis.call('SADD', prefix .. 'shards', shard)
end

local function unlist(page)
	local shard, key = shardOf(page)
	redis.call('SREM', prefix .. 'shard:' .. shard, key) -- Survey finds out that a set is empty
end
`)

var (
	// find describes pages. ARGV[2] is TOUCH, or EXISTS, which does not make the parts used.
	find = onPages + `
local found = {}
for i, page in ipairs(KEYS) do
	local id, bytes, used = look(page)
	found[i] = id and whole(ARGV[2], id, bytes) and {bytes, used, id} or false -- an answer ends at nil
end
return found`

	// drop takes pages that lack parts out of the lists and removes what is left of them.
	drop = onPages + `
for _, page in ipairs(KEYS) do
	local id, bytes = look(page)
	if not id or not whole('EXISTS', id, bytes) then
		redis.call('UNLINK', page)
		if id then all('UNLINK', id, bytes) end
		unlist(page)
	end
end`

	// touch sets the time to ARGV[2] and returns 1, or 0 without the page.
	touch = whenFull + onPages + `
local page = KEYS[1]
local id, bytes = look(page)
if not id or not whole('TOUCH', id, bytes) then return 0 end
redis.call('HSET', page, 'used', ARGV[2])
list(page)
return 1`

	// remove returns 1, 0 without the page, and -1 if the page is not that of ARGV[2], bytes, and ARGV[3],
	// used, which may be empty.
	remove = onPages + `
local page = KEYS[1]
local id, bytes, used = look(page)
if not id then return 0 end
if ARGV[3] ~= '' and (bytes ~= ARGV[2] or used ~= ARGV[3]) then return -1 end
redis.call('UNLINK', page)
all('UNLINK', id, bytes)
unlist(page)
return 1`

	// aside does as remove, and keeps the page. ARGV[4] is the reason, ARGV[5] the seconds for which it is
	// kept, ARGV[6] the number of pages that are; aside returns -2 when so many are there.
	aside = whenFull + onPages + `
local page, quarantine = KEYS[1], prefix .. 'quarantine'
local id, bytes, used = look(page)
if not id then return 0 end
if ARGV[3] ~= '' and (bytes ~= ARGV[2] or used ~= ARGV[3]) then return -1 end
local now = redis.call('TIME')[1]
redis.call('ZREMRANGEBYSCORE', quarantine, '-inf', now)
if redis.call('ZCARD', quarantine) >= tonumber(ARGV[6]) then return -2 end
redis.call('ZADD', quarantine, now + ARGV[5], id)
local kept = quarantine .. ':' .. id
redis.call('RENAME', page, kept)
redis.call('HSET', kept, 'name', page, 'reason', ARGV[4])
redis.call('EXPIRE', kept, ARGV[5])
all('EXPIRE', id, bytes, ARGV[5])
unlist(page)
return 1`

	// commit makes the upload ARGV[2] of ARGV[3] bytes the page, used at ARGV[4]. It returns the bytes of the
	// page that was there, which readers have for ARGV[5] seconds more, -1 without one, and -2 if parts are
	// missing.
	commit = onPages + `
local page, new, size = KEYS[1], ARGV[2], ARGV[3]
if all('STRLEN', new, size) ~= tonumber(size) then return -2 end
local id, bytes = look(page)
redis.call('HSET', page, 'bytes', size, 'used', ARGV[4], 'id', new)
list(page)
all('PERSIST', new, size)
if not id or id == new then return -1 end
all('EXPIRE', id, bytes, ARGV[5])
return tonumber(bytes)`

	// abort removes the parts of the upload ARGV[2] of ARGV[3] bytes, unless it is the page.
	abort = onPages + `
if look(KEYS[1]) ~= ARGV[2] then all('UNLINK', ARGV[2], ARGV[3]) end`
)

// run is the command that runs a script which writes.
func (t *Tier) run(s script, pages []string, args ...string) valkey.Completed {
	return t.client.B().Eval().Script(string(s)).Numkeys(int64(len(pages))).Key(pages...).Arg(t.prefix).Arg(args...).Build()
}

// looking is the command that runs find.
func (t *Tier) looking(pages []string, command string) valkey.Completed {
	return t.client.B().EvalRo().Script(string(find)).Numkeys(int64(len(pages))).Key(pages...).Arg(t.prefix, command).Build().ToRetryable()
}

// classes are the kinds of pages in keys.
var classes = map[pagefile.Class]string{pagefile.ClassPage: "page", pagefile.ClassTail: "tail", pagefile.ClassManifest: "manifest"}

func (t *Tier) key(n pagefile.Name) string {
	return t.prefix + classes[n.Class] + ":" + n.Fingerprint.String() + ":" + n.Key.String()
}

// shardName is the name of a shard's set, and its element in the set of all shards.
func shardName(s tier.Shard) string {
	return classes[s.Class] + ":" + s.Fingerprint.String() + ":" + pagefile.Key{s.First}.String()[:2]
}

func (t *Tier) partKey(id string, i int64) string {
	return t.prefix + "part:" + id + ":" + strconv.FormatInt(i, 10)
}

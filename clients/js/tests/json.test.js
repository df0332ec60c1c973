import assert from 'node:assert/strict'
import test from 'node:test'
import { parse, stringify } from '../src/json.js'

test('a whole number that a double cannot represent is parsed as a BigInt', () => {
  assert.deepEqual(parse('{"id": 12345678901234567890, "n": [-9007199254740993, 9007199254740991]}'), {
    id: 12345678901234567890n,
    n: [-9007199254740993n, 9007199254740991],
  })
  assert.equal(parse('9007199254740993'), 9007199254740993n)
})

test('digits that are not a whole number are left unchanged', () => {
  const text = String.raw`{"a": "12345678901234567890", "b\"": "\\", "12345678901234567890": 0.12345678901234567890,
    "c": "\"12345678901234567890", "d": 1.5e20, "e": 12345678901234567890.5, "f": 12345678901234567890e2}`
  assert.deepEqual(parse(text), JSON.parse(text))
})

test('a string that looks like the mark of a BigInt remains a string', () => {
  const [mark] = stringify({ a: 1n }).match(/bigint:\w+:/) ?? ['bigint:']
  const value = { text: `${mark}1`, big: 2n ** 64n }
  assert.deepEqual(parse(stringify(value)), value)
})

test('BigInts are written as digits even if a program defines BigInt.prototype.toJSON', () => {
  const value = { big: 2n ** 64n, small: 7n, list: [-(2n ** 70n)] }
  const text = '{"big":18446744073709551616,"small":7,"list":[-1180591620717411303424]}'
  assert.equal(stringify(value), text)
  BigInt.prototype.toJSON = function () {
    return String(this)
  }
  try {
    assert.equal(stringify(value), text)
  } finally {
    delete BigInt.prototype.toJSON
  }
  assert.equal(stringify({ big: 1n }, 2), '{\n  "big": 1\n}')
})

test('any value survives a round trip', () => {
  let seed = 1
  const random = (max) => (seed = (seed * 48271) % 2147483647) % max
  const strings = ['', '"', '\\', '\\"', '12345678901234567890', 'ü\u2028', '\ud800', '{"a":1}']
  const value = (depth) => {
    const kind = random(depth > 4 ? 5 : 7)
    if (kind === 0) return strings[random(strings.length)]
    if (kind === 1) return random(2 ** 31) - 2 ** 30
    if (kind === 2) return BigInt(random(2 ** 31)) * 10n ** 18n + 2n ** 60n
    if (kind === 3) return [true, false, null][random(3)]
    if (kind === 4) return random(2 ** 31) / 1024
    const parts = Array.from({ length: random(5) }, () => value(depth + 1))
    return kind === 5 ? parts : Object.fromEntries(parts.map((part, n) => [strings[random(strings.length)] + n, part]))
  }
  for (let n = 0; n < 2_000; n++) {
    const sent = value(0)
    assert.deepEqual(parse(stringify(sent)), sent)
    assert.deepEqual(parse(stringify(sent, 2)), sent)
  }
})

test('a string of several megabytes survives a round trip', () => {
  const value = { text: '"\\'.repeat(2_000_000), big: 2n ** 64n }
  assert.deepEqual(parse(stringify(value)), value)
})

test('invalid JSON is refused', () => {
  for (const text of ['', '{', '{"a":12345678901234567890', '[01234567890123456789]', '1234567890123456789x']) {
    assert.throws(() => parse(text), SyntaxError)
  }
})

/** Dialogs and toasts. */
import { h } from './dom.js'

/** @import { Child } from './dom.js' */

/**
 * Show a dialog with a form; resolves when it is closed. `submit` may throw to keep it open.
 * @param {string} title
 * @param {Child} body
 * @param {{action: string, danger?: boolean, submit: () => Promise<unknown>, ready?: () => boolean}} how
 * @returns {Promise<boolean>} whether it was done
 */
export function ask(title, body, { action, danger = false, submit, ready = () => true }) {
  return new Promise((resolve) => {
    let done = false
    const wrong = h('p', { class: 'problem', role: 'alert', hidden: true })
    const go = h('button', { class: `btn ${danger ? 'danger' : 'primary'}`, type: 'submit', text: action })
    const cancel = h('button', { class: 'btn', type: 'button', text: 'Cancel', onclick: () => dialog.close() })
    const check = () => (go.disabled = !ready())
    const form = h('form', {
      method: 'dialog',
      oninput: check,
      onsubmit: async (/** @type {Event} */ event) => {
        event.preventDefault()
        go.disabled = true
        try {
          await submit()
          done = true
          dialog.close()
        } catch (error) {
          wrong.hidden = false
          wrong.textContent = worded(error)
          check()
        }
      },
    }, h('h2', { text: title }), body, wrong, h('div', { class: 'actions' }, cancel, go))
    const dialog = h('dialog', { 'aria-label': title, onclose: () => (dialog.remove(), resolve(done)) }, form)
    document.body.append(dialog)
    dialog.showModal()
    check()
  })
}

/**
 * Ask the user to confirm a purge or deletion by typing the name.
 * @param {string} title
 * @param {string} text
 * @param {string} name
 * @param {string} action
 * @param {() => Promise<unknown>} submit
 */
export function confirmByName(title, text, name, action, submit) {
  const input = h('input', { type: 'text', autocomplete: 'off', autofocus: true, 'aria-label': `Type ${name} to confirm` })
  const body = h('div', { class: 'stack tight' }, h('p', { text }), h('p', {}, 'Type ', h('code', { text: name }), ' to confirm.'), input)
  return ask(title, body, { action, danger: true, submit, ready: () => input.value === name })
}

/**
 * @param {string} title
 * @param {Child} body
 */
export function show(title, body) {
  const close = h('button', { class: 'btn', type: 'button', text: 'Close', onclick: () => dialog.close() })
  const dialog = h('dialog', { 'aria-label': title, onclose: () => dialog.remove() },
    h('div', { class: 'body' }, h('h2', { text: title }), body, h('div', { class: 'actions' }, close)))
  document.body.append(dialog)
  dialog.showModal()
  return dialog
}

/** Return the container of toasts, which screen readers announce. */
export function toasts() {
  return document.querySelector('.toasts') ?? document.body.appendChild(h('div', { class: 'toasts', role: 'status', 'aria-live': 'polite' }))
}

/**
 * @param {string} text
 * @param {boolean} [bad]
 */
export function toast(text, bad = false) {
  const element = h('p', { class: bad ? 'toast bad' : 'toast', text })
  toasts().append(element)
  setTimeout(() => element.remove(), bad ? 9000 : 5000)
}

/**
 * Run an action and show its outcome as a toast.
 * @param {() => Promise<string | void>} work
 */
export async function attempt(work) {
  try {
    const said = await work()
    if (said) toast(said)
    return true
  } catch (error) {
    toast(worded(error), true)
    return false
  }
}

/** @param {unknown} error */
export function worded(error) {
  const { message, hint } = /** @type {any} */ (error)
  return hint ? `${message}: ${hint}` : String(message ?? error)
}
